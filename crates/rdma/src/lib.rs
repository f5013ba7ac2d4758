//! Queue pairs: connect, send, receive, RDMA Write and Read, over software iWARP or rdma-core verbs.
#![forbid(unsafe_code)]
