"""How planning and driving a build scale; behind `sift-index bench plan`."""
