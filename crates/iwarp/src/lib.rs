//! iWARP without I/O: MPA (RFC 5044, 6581), DDP (RFC 5041), RDMAP (RFC 5040, 7306).
#![forbid(unsafe_code)]
