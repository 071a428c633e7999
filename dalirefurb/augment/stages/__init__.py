"""Stages of one kind each: decoding, crops, resizes, flips, warps, colour, blur, erasing; and those that choose."""
