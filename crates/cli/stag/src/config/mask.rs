//! Masks inline secrets in a configuration's text, each byte with `*`. Error messages show lines of
//! the file, and go to logs and over the control socket.

/// `text` with its secrets masked; all other bytes keep their offsets. Also works on invalid TOML.
pub fn mask(text: &str) -> String {
    let mut shown = text.as_bytes().to_vec();
    let mut at = 0;
    while let Some(found) = text[at..].find("secret") {
        at += found + "secret".len();
        let Some(value) = value_after(text, at) else { continue };
        let covered = value.start..value.start + secret_len(&text[value.start..], value.quote);
        at = covered.end;
        shown[covered].iter_mut().filter(|byte| !matches!(byte, b'\n' | b'\r')).for_each(|byte| *byte = b'*');
    }
    // Only whole characters were replaced, so the text is still UTF-8.
    String::from_utf8_lossy(&shown).into_owned()
}

struct Value {
    /// Its first byte, behind the quote.
    start: usize,
    /// Its opening quote; `None` for a bare value.
    quote: Option<&'static str>,
}

/// The value of the key that ends at `at`; `None` if no `=` follows, as after `secret-file`.
fn value_after(text: &str, at: usize) -> Option<Value> {
    let blank = [' ', '\t'];
    let rest = &text[at..];
    let rest = rest.strip_prefix(['"', '\'']).unwrap_or(rest).trim_start_matches(blank);
    let rest = rest.strip_prefix('=')?.trim_start_matches(blank);
    let quote = ["\"\"\"", "'''", "\"", "'"].into_iter().find(|quote| rest.starts_with(quote));
    Some(Value { start: text.len() - rest.len() + quote.map_or(0, str::len), quote })
}

/// Length of a value: up to its closing quote; without one, up to the end of its line.
fn secret_len(value: &str, quote: Option<&str>) -> usize {
    let line = value.find('\n').unwrap_or(value.len());
    let Some(quote) = quote else { return line };
    let mut at = 0;
    while let Some(found) = value[at..].find(quote) {
        let end = at + found;
        // A quote behind a backslash belongs to the value; single quotes know no backslash.
        let escaped = value[..end].bytes().rev().take_while(|byte| *byte == b'\\').count() % 2 == 1;
        if !(escaped && quote.starts_with('"')) {
            return if quote.len() == 1 { end.min(line) } else { end };
        }
        at = end + 1;
    }
    if quote.len() == 1 { line } else { value.len() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inline_secrets_are_covered_wherever_they_stand() {
        let text = "a = 1\nsecret = \"höchst geheim\"\nusers = [{ name = \"x\", \"secret\"='quiet' }]\nsecret = \"\"\"\ntwo\nlines\"\"\"\nb = 2\n\
                    secret-file = \"path\"\n{ secret = \"a\\\"q\", name = \"y\" }\nsecret = bare";
        let shown = mask(text);
        assert_eq!(shown.len(), text.len());
        for secret in ["geheim", "höchst", "quiet", "two", "lines", "bare", "\\\"q"] {
            assert!(!shown.contains(secret), "{shown}");
        }
        for open in ["a = 1", "b = 2", "name = \"x\"", "name = \"y\"", "secret-file = \"path\""] {
            assert!(shown.contains(open), "{shown}");
        }
        assert_eq!(shown.matches('\n').count(), text.matches('\n').count());
    }

    #[test]
    fn text_of_any_kind_is_survived() {
        for text in
            ["secret", "secret=", "secret = \"", "secret = \"\"\"", "ösecret = ö", "secretsecret=secret"]
        {
            assert_eq!(mask(text).len(), text.len(), "{text}");
        }
    }
}
