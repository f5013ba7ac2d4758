//! Man pages and shell completions, generated from the command line's own definition.

use std::fs;
use std::io::Write;
use std::path::Path;

use clap::CommandFactory;
use clap_complete::Shell;

use crate::args::Cli;
use crate::exit::Exit;

/// Prints completions for `shell`.
pub fn completions(shell: Shell) -> Exit {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "stag", &mut script);
    match std::io::stdout().write_all(&script) {
        Ok(()) => Exit::Done,
        Err(error) => {
            eprintln!("stag: stdout: {error}");
            Exit::Failed
        }
    }
}

/// Writes `stag.1` and a page for each subcommand into `dir`.
pub fn man(dir: &Path) -> Exit {
    match write_pages(dir) {
        Ok(()) => Exit::Done,
        Err(error) => {
            eprintln!("stag: {}: {error}", dir.display());
            Exit::Failed
        }
    }
}

fn write_pages(dir: &Path) -> std::io::Result<()> {
    fs::create_dir_all(dir)?;
    clap_mangen::generate_to(Cli::command().disable_help_subcommand(true), dir)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_subcommand_gets_a_man_page_with_its_examples() {
        let dir = tempfile::tempdir().unwrap();
        write_pages(dir.path()).unwrap();
        for command in Cli::command().get_subcommands() {
            let name = command.get_name();
            let page = fs::read_to_string(dir.path().join(format!("stag-{name}.1"))).unwrap();
            // roff writes a hyphen that must not break as \-.
            let page = page.replace("\\-", "-");
            assert!(page.contains(&format!("stag {name}")), "{name}");
            assert!(page.contains("Examples:"), "{name}");
        }
        assert!(fs::read_to_string(dir.path().join("stag.1")).unwrap().contains("Exit status"));
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
