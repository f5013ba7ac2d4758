//! `stag top`: the load of a daemon, as a live view on a terminal or as reports.
//!
//! [`rates`] has the difference of two statuses. [`plain`] prints it. The live view: [`watch`] asks
//! the daemon, [`items`] makes rows, [`state`] is moved by keys and statuses and keeps a
//! [`history`], [`draw`] and [`details`] show it with [`paint`] and [`shown`], and [`terminal`] has
//! the keyboard and the screen. Only [`watch`] and [`terminal`] do I/O.

mod details;
mod draw;
mod history;
mod items;
mod paint;
mod plain;
mod rates;
mod shown;
mod state;
mod terminal;
mod watch;

#[cfg(test)]
mod tests;

use std::io::{IsTerminal, stdout};
use std::time::Duration;

use crate::args;
use crate::control::client::{CallError, Client};
use crate::control::status::Status;
use crate::exit::Exit;
use crate::out::{self, OutError};
use rates::Top;

pub fn command(args: &args::Top) -> Exit {
    match run(args) {
        Ok(exit) => exit,
        Err(error) => error.show(),
    }
}

fn run(args: &args::Top) -> Result<Exit, CallError> {
    let interval = Duration::try_from_secs_f64(args.interval).unwrap_or(Duration::from_secs(1));
    let mut client = Client::connect(args.at.control.as_deref())?;
    let first: Status = client.ask("status")?;
    if args.once || args.json || !is_screen() {
        return reports(args, client, first, interval);
    }
    let place = args.at.control.clone();
    Ok(terminal::live(client, place, first, interval).unwrap_or_else(|error| {
        say!("stag: the terminal: {error}");
        Exit::Failed
    }))
}

/// Whether stdout is a terminal on which a cursor can be placed.
fn is_screen() -> bool {
    stdout().is_terminal() && std::env::var_os("TERM").is_some_and(|term| term != "dumb")
}

/// Prints one report after another, until stdout is closed.
fn reports(
    args: &args::Top,
    mut client: Client,
    mut before: Status,
    interval: Duration,
) -> Result<Exit, CallError> {
    let mut first = true;
    loop {
        std::thread::sleep(interval);
        let now: Status = client.ask("status")?;
        let top = Top::between(&before, &now);
        let text = match args.json {
            true => serde_json::to_string(&top).map_err(std::io::Error::from)? + "\n",
            // A line between two reports.
            false => format!("{}{}", if first { "" } else { "\n" }, plain::text(&now, &top)),
        };
        let printed = out::write(text.as_bytes());
        if printed.is_err() || args.once {
            return Ok(printed.err().map_or(Exit::Done, |error: OutError| error.show()));
        }
        (before, first) = (now, false);
    }
}
