"""`bench-kernels`: our WGSL kernels beside another runtime's, in one page load, with the roofline of the same adapter.

rows -> what is computed; cases -> its data and reference; contenders, peers -> who computes it; session -> the page that
measures; record, report -> what was found.
"""
