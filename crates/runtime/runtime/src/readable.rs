//! [`Readable`]: waiting until a descriptor that another library reads has something to read. It
//! never reads itself.

use std::fmt;
use std::future::Future;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::pin::Pin;
use std::task::{Context, Poll};

use io_uring::{opcode, types};

use crate::op::{Op, Watched, is_transient};

/// Waits for a descriptor, such as a completion channel's, to become readable.
pub struct Readable {
    /// The poll in the ring, if a task waits.
    op: Option<Op<()>>,
    /// A descriptor of our own for the same open file, so that its number cannot become another
    /// file's.
    fd: Watched,
}

impl Readable {
    /// Watches the open file of `fd`, which may be closed meanwhile.
    ///
    /// # Errors
    /// When there is no descriptor left.
    pub fn new(fd: BorrowedFd<'_>) -> io::Result<Self> {
        Ok(Self { op: None, fd: Watched::new(fd.try_clone_to_owned()?) })
    }

    /// Ready when there is something to read, or nothing ever will be: a read tells which. A caller
    /// that found nothing to read without blocking polls again; it is ready at once if data has
    /// arrived by then.
    ///
    /// # Errors
    /// Those of poll(2) on the ring.
    pub fn poll_readable(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            let op = self.op.get_or_insert_with(|| {
                let entry = opcode::PollAdd::new(types::Fd(self.fd.as_raw_fd()), libc::POLLIN as u32).build();
                // SAFETY: the entry points to nothing.
                unsafe { Op::start(entry, ()) }
            });
            let Poll::Ready((completion, ())) = Pin::new(op).poll(cx) else { return Poll::Pending };
            self.op = None;
            match completion.count() {
                Ok(_) => return Poll::Ready(Ok(())),
                Err(e) if is_transient(&e) => {}
                Err(e) => return Poll::Ready(Err(e)),
            }
        }
    }

    /// [`Self::poll_readable`] as a future.
    ///
    /// # Errors
    /// As [`Self::poll_readable`].
    pub async fn readable(&mut self) -> io::Result<()> {
        std::future::poll_fn(|cx| self.poll_readable(cx)).await
    }
}

impl fmt::Debug for Readable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Readable({})", self.fd.as_raw_fd())
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::fd::AsFd;
    use std::time::Duration;

    use super::*;
    use crate::{Config, Runtime, sleep, spawn, timeout};

    #[test]
    fn a_pipe_is_readable_from_its_first_write_until_it_is_read() {
        Runtime::new(Config::default()).unwrap().block_on(async {
            let (mut reader, mut writer) = std::io::pipe().unwrap();
            let mut watch = Readable::new(reader.as_fd()).unwrap();
            assert!(
                timeout(Duration::from_millis(20), watch.readable()).await.is_err(),
                "nothing was written"
            );
            let write = spawn(async move {
                sleep(Duration::from_millis(5)).await;
                writer.write_all(b"ab").unwrap();
                writer
            });
            watch.readable().await.unwrap();
            let writer = write.await.unwrap();
            watch.readable().await.unwrap();
            reader.read_exact(&mut [0; 2]).unwrap();
            assert!(timeout(Duration::from_millis(20), watch.readable()).await.is_err(), "all was read");
            drop(writer);
            watch.readable().await.expect("the end of a pipe can be read");
        });
    }

    #[test]
    fn a_poll_that_is_dropped_leaves_the_ring_in_order() {
        Runtime::new(Config::default()).unwrap().block_on(async {
            let (reader, _writer) = std::io::pipe().unwrap();
            for _ in 0..100 {
                let mut watch = Readable::new(reader.as_fd()).unwrap();
                assert!(timeout(Duration::from_micros(50), watch.readable()).await.is_err());
            }
        });
    }
}
