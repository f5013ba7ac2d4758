//! Man pages, shell completions and the book's page of commands, generated from the definitions of
//! the command line and of the settings.

use std::fs;
use std::path::Path;

use clap::CommandFactory;
use clap_complete::Shell;

use crate::args::Cli;
use crate::config::reference;
use crate::exit::Exit;
use crate::out;

/// Prints completions for `shell`.
pub fn completions(shell: Shell) -> Exit {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "stag", &mut script);
    match out::write(&script) {
        Ok(()) => Exit::Done,
        Err(error) => error.show(),
    }
}

/// Writes the man pages below `dir`: `man1/stag.1`, one there for each subcommand,
/// `man5/stag.toml.5`, and `man7/stag.7`.
pub fn man(dir: &Path) -> Exit {
    match write_pages(dir) {
        Ok(()) => Exit::Done,
        Err(error) => {
            say!("stag: {}: {error}", dir.display());
            Exit::Failed
        }
    }
}

fn write_pages(dir: &Path) -> std::io::Result<()> {
    let [commands, files, overview] = ["man1", "man5", "man7"].map(|section| dir.join(section));
    for folder in [&commands, &files, &overview] {
        fs::create_dir_all(folder)?;
    }
    clap_mangen::generate_to(Cli::command().disable_help_subcommand(true), commands)?;
    fs::write(files.join("stag.toml.5"), reference::manual())?;
    fs::write(overview.join("stag.7"), crate::overview::manual())
}

#[cfg(test)]
mod tests {
    use clap::{Arg, Command};

    use super::*;

    /// The page of the book that has all commands.
    const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../docs/src/reference/commands.md");

    /// Options of at least so many commands are listed once, at the end of the page.
    const SHARED: usize = 5;

    /// An option or argument in its notation, and its meaning: a row of a table.
    fn row(arg: &Arg) -> String {
        let names: Vec<_> =
            arg.get_value_names().unwrap_or_default().iter().map(|n| format!("<{n}>")).collect();
        let takes = arg.get_action().takes_values();
        let written = match (arg.get_short(), arg.get_long()) {
            (None, None) => names.join(" "),
            (short, long) => {
                let short = short.map(|c| format!("-{c}"));
                let both: Vec<_> = short.into_iter().chain(long.map(|word| format!("--{word}"))).collect();
                [both.join(", ")]
                    .into_iter()
                    .chain(names.into_iter().filter(|_| takes))
                    .collect::<Vec<_>>()
                    .join(" ")
            }
        };
        let mut means = arg.get_help().map(ToString::to_string).unwrap_or_default();
        let values: Vec<_> =
            arg.get_possible_values().iter().map(|value| value.get_name().to_owned()).collect();
        if takes && !values.is_empty() {
            means.push_str(&format!(" [{}]", values.join(", ")));
        }
        let default: Vec<_> = arg.get_default_values().iter().map(|value| value.to_string_lossy()).collect();
        if takes && !arg.is_hide_default_value_set() && default.iter().any(|value| !value.is_empty()) {
            means.push_str(&format!(" [default: {}]", default.join(" ")));
        }
        if let Some(name) = arg.get_env() {
            means.push_str(&format!(" [env: {}]", name.to_string_lossy()));
        }
        let cell = |text: &str| text.replace('|', "\\|").replace('\n', " ");
        format!("| `{}` | {} |", cell(&written), cell(&means).replace('<', "\\<"))
    }

    fn table(rows: &[String]) -> String {
        if rows.is_empty() {
            String::new()
        } else {
            format!("\n| option | meaning |\n|---|---|\n{}\n", rows.join("\n"))
        }
    }

    /// All commands with their names, those of commands below commands too.
    fn all(command: &Command, path: &str, found: &mut Vec<(String, Command)>) {
        found.push((path.to_owned(), command.clone()));
        for below in command.get_subcommands().filter(|c| c.get_name() != "help" && !c.is_hide_set()) {
            all(below, &format!("{path} {}", below.get_name()), found);
        }
    }

    /// A command as a section of a document.
    fn section(path: &str, command: &Command, shared: &[String]) -> String {
        let about =
            command.get_long_about().or(command.get_about()).map(ToString::to_string).unwrap_or_default();
        let mut shown = command.clone().bin_name(path).disable_help_flag(true).disable_help_subcommand(true);
        let usage = shown.render_usage().to_string();
        let rows: Vec<_> = command.get_arguments().filter(|arg| !arg.is_hide_set()).map(row).collect();
        let own: Vec<_> = rows.iter().filter(|row| !shared.contains(row)).cloned().collect();
        let more = if own.len() < rows.len() {
            "\nIt takes the [shared options](#shared-options) too.\n"
        } else {
            ""
        };
        let after = command.get_after_long_help().map(ToString::to_string).unwrap_or_default();
        let after = if after.is_empty() { after } else { format!("\n```text\n{}\n```\n", after.trim_end()) };
        let about = about.trim().replace('<', "\\<");
        format!("\n## {path}\n\n{about}\n\n```text\n{}\n```\n{}{more}{after}", usage.trim(), table(&own))
    }

    fn page(again: &str) -> String {
        let mut commands = Vec::new();
        all(&Cli::command(), "stag", &mut commands);
        let mut counts: Vec<(String, usize)> = Vec::new();
        let options =
            commands.iter().flat_map(|(_, command)| command.get_arguments().filter(|a| !a.is_positional()));
        for row in options.map(row) {
            match counts.iter_mut().find(|(known, _)| *known == row) {
                Some((_, count)) => *count += 1,
                None => counts.push((row, 1)),
            }
        }
        let shared: Vec<_> = counts.into_iter().filter(|(_, n)| *n >= SHARED).map(|(row, _)| row).collect();
        let mut page = format!(
            "# Commands\n\nGenerated from the command line's definition: `{again}` writes\n\
             this page. `--help` says more of each option, and `stag man DIR` writes all of it as man pages.\n"
        );
        commands.iter().for_each(|(path, command)| page.push_str(&section(path, command, &shared)));
        page.push_str(&format!(
            "\n## Shared options\n\nMost commands that log in to a target have these.\n{}",
            table(&shared)
        ));
        page
    }

    #[test]
    fn the_books_page_of_commands_is_that_of_the_command_line() {
        let again = "STAG_WRITE_DOCS=1 cargo test -p stag --lib page_of_commands";
        let page = page(again);
        if std::env::var_os("STAG_WRITE_DOCS").is_some() {
            fs::write(PAGE, &page).unwrap();
        }
        let there = fs::read_to_string(PAGE).unwrap_or_default();
        assert!(there == page, "docs/src/reference/commands.md is not what the commands say: {again}");
    }

    #[test]
    fn every_subcommand_gets_a_man_page_with_its_examples() {
        let dir = tempfile::tempdir().unwrap();
        write_pages(dir.path()).unwrap();
        for command in Cli::command().get_subcommands() {
            let name = command.get_name();
            let page = fs::read_to_string(dir.path().join(format!("man1/stag-{name}.1"))).unwrap();
            // roff writes a hyphen that must not break as \-.
            let page = page.replace("\\-", "-");
            assert!(page.contains(&format!("stag {name}")), "{name}");
            assert!(page.contains("Examples:"), "{name}");
        }
        assert!(fs::read_to_string(dir.path().join("man1/stag.1")).unwrap().contains("Exit status"));
        assert!(fs::read_to_string(dir.path().join("man5/stag.toml.5")).unwrap().contains("STAG.TOML"));
        assert!(fs::read_to_string(dir.path().join("man7/stag.7")).unwrap().contains("TH STAG 7"));
    }

    #[test]
    fn completions_know_the_subcommands() {
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "stag", &mut script);
            assert!(String::from_utf8(script).unwrap().contains("check-config"), "{shell}");
        }
    }
}
