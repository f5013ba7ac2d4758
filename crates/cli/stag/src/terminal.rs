//! Asks a question at the terminal without echo of the answer. Must restore the terminal, also
//! after Ctrl-C.

use std::fs::File;
use std::io::{self, Read, Write};

use iscsi::chap::Secret;
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr};
use zeroize::{Zeroize, Zeroizing};

/// The longest answer, bytes: as long as a CHAP secret may be.
const MOST: usize = 255;
const INTERRUPT: u8 = 0x03;
const END: u8 = 0x04;
const ERASE_LINE: u8 = 0x15;

/// A terminal without echo, which is restored on drop.
struct Silent {
    terminal: File,
    before: Termios,
}

impl Silent {
    fn open() -> io::Result<Self> {
        let terminal = File::options().read(true).write(true).open("/dev/tty");
        let terminal = terminal.map_err(|_| io::Error::other("there is no terminal to ask at"))?;
        let before = tcgetattr(&terminal)?;
        let mut silent = before.clone();
        // Also no signals: one that ended this process here would leave the terminal without echo.
        silent.local_modes -= LocalModes::ECHO | LocalModes::ICANON | LocalModes::ISIG;
        tcsetattr(&terminal, OptionalActions::Flush, &silent)?;
        Ok(Self { terminal, before })
    }
}

impl Drop for Silent {
    fn drop(&mut self) {
        let _ = tcsetattr(&self.terminal, OptionalActions::Flush, &self.before);
        let _ = self.terminal.write_all(b"\n");
    }
}

/// Asks `question` and reads a line.
///
/// # Errors
/// There is no terminal, or no answer.
pub fn ask(question: &str) -> io::Result<Secret> {
    let mut silent = Silent::open()?;
    silent.terminal.write_all(question.as_bytes())?;
    let line = line(&mut &silent.terminal)?;
    drop(silent);
    Ok(line)
}

fn line(from: &mut impl Read) -> io::Result<Secret> {
    // Room from the beginning: a Vec that grows leaves copies behind.
    let mut line = Zeroizing::new(Vec::with_capacity(MOST));
    let mut byte = Zeroizing::new([0]);
    loop {
        if from.read(&mut *byte)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        match byte[0] {
            b'\n' | b'\r' => return Ok(Secret::new(std::mem::take(&mut *line))),
            INTERRUPT | END => return Err(io::Error::other("no answer")),
            0x08 | 0x7f => {
                line.pop();
            }
            ERASE_LINE => line.zeroize(),
            _ if line.len() == MOST => return Err(io::Error::other("too long an answer")),
            other => line.push(other),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn typed(text: &[u8]) -> io::Result<Secret> {
        line(&mut &*text)
    }

    #[test]
    fn a_line_is_edited_as_at_any_prompt() {
        assert_eq!(typed(b"wrong\x15secre\x7fet\rmore").unwrap(), Secret::new(*b"secret"));
        assert_eq!(typed(b"\x7f\x7fa\n").unwrap(), Secret::new(*b"a"));
        assert!(typed(b"secret\x03").is_err());
        assert!(typed(b"secret").is_err());
        assert!(typed(&[b'x'; 300]).is_err());
    }
}
