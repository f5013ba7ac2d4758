//! iSER (RFC 7145) without I/O: its header, its CM private data, and which steering tags belong to which task.
#![forbid(unsafe_code)]
