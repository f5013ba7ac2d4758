//! Answers of the control socket that descriptors come with (SCM_RIGHTS).

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags,
};
use serde::Serialize;

use super::protocol::{Answer, write_answer};

/// Descriptors that go along at most: the kernel takes 253 in one message.
pub const MOST: usize = 250;

/// Answers with `value`, and with descriptors.
///
/// # Errors
/// There are too many of them, or the client is gone.
pub fn send(stream: &UnixStream, value: &impl Serialize, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut line = Vec::new();
    write_answer(&mut line, Answer::Ok(serde_json::to_value(value)?))?;
    let mut space = vec![MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(io::Error::other("too many descriptors"));
    }
    let sent = rustix::net::sendmsg(stream, &[IoSlice::new(&line)], &mut control, SendFlags::NOSIGNAL)?;
    // The descriptors were sent with the first byte.
    io::Write::write_all(&mut &*stream, &line[sent..])
}

/// The first line and the descriptors that came with it.
///
/// # Errors
/// The daemon is gone, or its line is too long.
pub fn receive(stream: &UnixStream) -> io::Result<(Vec<u8>, Vec<OwnedFd>)> {
    let (mut line, mut fds) = (Vec::new(), Vec::new());
    let mut space = vec![MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST))];
    while line.last() != Some(&b'\n') {
        if line.len() > 1 << 20 {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "too long a line"));
        }
        let mut piece = [0; 4096];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let received = rustix::net::recvmsg(
            stream,
            &mut [IoSliceMut::new(&mut piece)],
            &mut control,
            RecvFlags::CMSG_CLOEXEC,
        )?;
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(sent) = message {
                fds.extend(sent);
            }
        }
        match received.bytes {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            n => line.extend_from_slice(&piece[..n]),
        }
    }
    Ok((line, fds))
}
