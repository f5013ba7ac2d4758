//! "Did you mean …?": the nearest of the known words.

/// The word of `known` that is nearest to `word`, if any is near enough.
pub fn nearest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let word = word.to_lowercase();
    let known: Vec<&str> = known.into_iter().collect();
    let far = |candidate: &&str| strsim::damerau_levenshtein(&word, candidate);
    let nearest = known.iter().copied().min_by_key(far)?;
    // Up to a third of the letters may be wrong.
    if far(&nearest) <= (nearest.len().max(word.len()) / 3).max(1) && !word.is_empty() {
        return Some(nearest);
    }
    // Or one is a prefix of the other: `rem` of `removable`, `cache` of `cache-mode`.
    known
        .into_iter()
        .find(|candidate| word.len() >= 3 && (candidate.starts_with(&word) || word.starts_with(candidate)))
}

/// `known` as a sentence's list: "a, b and c".
pub fn list<'a>(known: impl IntoIterator<Item = &'a str>) -> String {
    let words: Vec<&str> = known.into_iter().collect();
    match words.split_last() {
        Some((last, rest)) if !rest.is_empty() => format!("{} and {last}", rest.join(", ")),
        _ => words.concat(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_finds_its_word_and_nonsense_finds_none() {
        let known = ["size", "serial", "removable", "cache"];
        assert_eq!(nearest("szie", known), Some("size"));
        assert_eq!(nearest("removeable", known), Some("removable"));
        assert_eq!(nearest("rem", known), Some("removable"));
        assert_eq!(nearest("colour", known), None);
        assert_eq!(nearest("cache-mode", known), Some("cache"));
        assert_eq!(nearest("x", known), None);
        assert_eq!(nearest("", known), None);
        assert_eq!(nearest("x", []), None);
    }

    #[test]
    fn lists_read_like_sentences() {
        assert_eq!(list([]), "");
        assert_eq!(list(["a"]), "a");
        assert_eq!(list(["a", "b", "c"]), "a, b and c");
    }
}
