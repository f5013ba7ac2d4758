//! The command line's form of a unit: `PATH[,option[=value]...]`. A comma in the path is written
//! `\,`.

use super::{Contradiction, OptionError, Options, UnitSpec};

/// The reason why a unit on the command line was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseError {
    #[error("{error}: {}", error.instead())]
    Option {
        #[from]
        error: OptionError,
    },
    #[error("{}", .0.iter().map(|found| format!("{found}: {}", found.instead)).collect::<Vec<_>>().join("; "))]
    Contradictions(Vec<Contradiction>),
}

/// Reads `PATH[,option[=value]...]`.
///
/// # Errors
/// The first option that is not understood, or all contradictions.
pub fn parse(text: &str) -> Result<UnitSpec, ParseError> {
    let mut parts = split(text).into_iter();
    let path = parts.next().unwrap_or_default();
    let mut options = Options::default();
    for part in parts {
        let (name, value) = part.split_once('=').unwrap_or((&part, ""));
        options.set(name.trim(), value)?;
    }
    UnitSpec::new(&path, options).map_err(ParseError::Contradictions)
}

/// Splits at commas without a backslash before them, and removes those backslashes.
fn split(text: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    let mut chars = text.chars().peekable();
    while let Some(char) = chars.next() {
        match char {
            ',' => parts.push(String::new()),
            '\\' if chars.peek() == Some(&',') => push(&mut parts, chars.next().unwrap_or(',')),
            other => push(&mut parts, other),
        }
    }
    parts
}

fn push(parts: &mut [String], char: char) {
    if let Some(last) = parts.last_mut() {
        last.push(char);
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use backing::spec::CacheMode;

    use super::*;
    use crate::unit::Backing;

    #[test]
    fn a_path_alone_leaves_everything_to_the_daemon() {
        let unit = parse("/srv/a.img").unwrap();
        assert_eq!(unit.backing, Backing::Path("/srv/a.img".into()));
        assert_eq!(unit.options, Options::default());
    }

    #[test]
    fn options_follow_commas_and_commas_in_paths_are_escaped() {
        let unit = parse(r"/srv/a\,b\c.img,size=1G,bs=4096,ro,cache=writethrough,serial=a=b").unwrap();
        assert_eq!(unit.backing, Backing::Path(PathBuf::from(r"/srv/a,b\c.img")));
        assert_eq!(unit.options.size, Some(1 << 30));
        assert_eq!(unit.options.bs, Some(4096));
        assert_eq!(unit.options.ro, Some(true));
        assert_eq!(unit.options.cache, Some(CacheMode::WriteThrough));
        assert_eq!(unit.options.serial.as_deref(), Some("a=b"));
        assert_eq!(parse("mem:1G").unwrap().backing, Backing::Memory(1 << 30));
    }

    #[test]
    fn errors_say_what_to_write_instead() {
        let says = |text: &str| parse(text).unwrap_err().to_string();
        assert_eq!(says("mem:1G,removeable"), "there is no option `removeable`: did you mean `removable`?");
        assert_eq!(says("/x,bs=520"), "`520` does not fit `bs`: write 512 or 4096");
        assert_eq!(says("/x,ro,ro"), "`ro` is given twice: leave one of them out");
        assert!(says("mem:").contains("mem:1G"), "{}", says("mem:"));
        assert!(says("/x,").contains("no option ``"), "{}", says("/x,"));
    }
}
