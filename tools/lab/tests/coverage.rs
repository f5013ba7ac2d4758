//! The page that says which experiment answers each figure, table, equation and claim of the
//! papers.

use std::collections::BTreeSet;

use lab::library::built_in;

const PAGE: &str = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/src/lab/coverage.md"));

/// The figures, tables and equations with results: the paper's heading, and the items.
const RESULTS: &[(&str, &[&str])] = &[
    ("iSCSI over RDMA", &["Figure 5.4", "Figure 5.5", "Equations 5.1 to 5.3"]),
    ("iSER Storage Target", &["Table 1", "Figure 3", "Figure 4", "Figure 5", "Figure 6"]),
    ("An iSCSI Design", &[]),
    ("Analysis of iSCSI Target", &["Table 1", "Table 2", "Table 3", "Figure 6"]),
    (
        "Performance of RDMA-capable",
        &[
            "Figure 2",
            "Figure 3 (a)",
            "Figure 3 (b)",
            "Figure 4 (a)",
            "Figure 4 (b)",
            "Figure 5 (a)",
            "Figure 5 (b)",
        ],
    ),
];

/// The rows of a paper: the item, and its answer.
fn rows(part: &str) -> Vec<(&str, &str)> {
    let rows = part.lines().filter(|line| line.starts_with("| ")).skip(1);
    rows.map(|row| row.trim_matches(['|', ' ']).split_once(" | ").expect("a row has two cells")).collect()
}

#[test]
fn every_item_of_the_papers_has_an_experiment_or_a_reason() {
    let all = built_in().unwrap();
    let known: BTreeSet<&str> = all.iter().map(|source| source.experiment.name.as_str()).collect();
    let parts: Vec<&str> = PAGE.split("\n## ").skip(1).collect();
    assert_eq!(parts.len(), RESULTS.len());
    let mut named = BTreeSet::new();
    for (part, (paper, items)) in parts.iter().zip(RESULTS) {
        assert!(part.starts_with(paper), "{paper}");
        let rows = rows(part);
        for item in *items {
            assert!(rows.iter().any(|(row, _)| row.starts_with(&format!("{item}:"))), "{paper}: {item}");
        }
        for (item, answer) in rows {
            let names: Vec<&str> =
                answer.split('`').skip(1).step_by(2).filter(|name| known.contains(name)).collect();
            let lower = answer.to_lowercase();
            assert!(
                !names.is_empty() || lower.starts_with("not done, because "),
                "{paper}: {item}: {answer}"
            );
            for gap in lower.split("not done").skip(1) {
                assert!(gap.contains("because "), "{paper}: {item}: no reason in {answer}");
            }
            named.extend(names);
        }
    }
    for source in all.iter().filter(|source| !source.experiment.paper.is_empty()) {
        let name = source.experiment.name.as_str();
        assert!(named.contains(name), "{name} repeats a paper, and no row names it");
    }
}

#[test]
fn every_name_in_code_on_the_page_is_an_experiment_or_a_known_word() {
    let all = built_in().unwrap();
    let words = ["osd", "stag tune", "tools/lab/tests/coverage.rs"];
    for name in PAGE.split('`').skip(1).step_by(2) {
        let known = all.iter().any(|source| source.experiment.name == name);
        assert!(known || words.contains(&name), "{name}");
    }
}
