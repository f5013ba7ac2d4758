//! One io_uring a core: sockets, files, timers, and buffers that operations own.
