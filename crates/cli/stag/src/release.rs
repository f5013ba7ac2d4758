//! Lets several loads begin together: each says that it is ready, and waits for a line on stdin.

/// Says `ready` on stderr and waits for a line. Blocks the core.
///
/// # Errors
/// In words, if no line comes.
pub fn wait() -> Result<(), String> {
    say!("ready");
    match std::io::stdin().read_line(&mut String::new()) {
        Ok(read) if read > 0 => Ok(()),
        Ok(_) => Err("it ended".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}
