//! Tables of the page. One without room for its columns becomes a list: a block for each row, in
//! which every cell has its column's name. So no screen cuts off a column.

use std::fmt::Write as _;

/// The room that a column needs, pixels.
const COLUMN: usize = 105;
/// The steps in which tables differ in the room that they need, pixels.
const STEP: usize = 210;
/// The most steps: wider tables are lists on all screens.
const MOST_STEPS: usize = 12;
/// The room within the page's margins, pixels. Tables that need more use the whole window.
const INSIDE: usize = 1130;

/// A table with this head, whose cells are written `<th…>…</th>`, and rows of such cells. It is a
/// list where there is less room than its columns need, or than `room` pixels.
pub fn table(head: &[String], rows: &[Vec<String>], room: Option<usize>) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(head.len());
    // Words of a table that says its room may be longer than a line: checksums.
    let words = if room.is_some() { " words" } else { "" };
    let room = room.unwrap_or(columns * COLUMN);
    let full = if room > INSIDE { " full" } else { "" };
    let mut text = format!("<div class=\"wide{full}\"><table class=\"s{}{words}\">", step(room));
    if !head.is_empty() {
        let _ = write!(text, "<thead><tr>{}</tr></thead>", head.concat());
    }
    text += "<tbody>";
    for row in rows {
        text += "<tr>";
        for (at, cell) in row.iter().enumerate() {
            let name = head.get(at).map(|head| plain(head)).filter(|name| !name.is_empty());
            match (name, cell.split_at_checked("<td".len())) {
                (Some(name), Some((tag, rest))) => _ = write!(text, "{tag} data-h=\"{name}\"{rest}"),
                _ => text += cell,
            }
        }
        text += "</tr>";
    }
    text + "</tbody></table></div>"
}

fn step(room: usize) -> usize {
    room.div_ceil(STEP).clamp(1, MOST_STEPS)
}

/// The text of a cell of the head, which is escaped already.
fn plain(cell: &str) -> String {
    let mut text = String::new();
    let mut inside = false;
    for c in cell.replace("<br>", ": ").chars() {
        match c {
            '<' => inside = true,
            '>' => inside = false,
            c if !inside => text.push(c),
            _ => {}
        }
    }
    text
}

/// The style of tables that have too little room.
pub(crate) fn rules() -> String {
    let mut text = String::from(".wide{container-type:inline-size}");
    for step in 1..=MOST_STEPS {
        let table = format!(".s{step}");
        // Without a width that is too small, the last step holds tables of any size.
        let room = if step == MOST_STEPS { usize::MAX >> 40 } else { step * STEP };
        let _ = write!(
            text,
            "@container (max-width:{room}px){{{table} thead{{display:none}}\
             {table},{table} tbody,{table} tr{{display:block}}\
             {table} tr{{border-bottom:2px solid var(--grid);padding:6px 0}}\
             {table} :is(td,th){{display:flex;justify-content:space-between;gap:12px;padding:2px 0;border:0;text-align:right}}\
             {table} :is(td,th):empty{{display:none}}\
             {table} [data-h]::before{{content:attr(data-h);color:var(--soft);text-align:left}}}}"
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cell_has_the_name_of_its_column_and_the_table_the_room_that_it_needs() {
        let head =
            ["<th>Size</th>".to_owned(), "<th class=n>TCP<br><small>µs &lt;x&gt;</small></th>".to_owned()];
        let rows = [vec!["<th>4 KiB</th>".to_owned(), "<td class=n>12</td>".to_owned()]];
        let text = table(&head, &rows, None);
        assert!(
            text.contains("<th data-h=\"Size\">4 KiB</th><td data-h=\"TCP: µs &lt;x&gt;\" class=n>12</td>"),
            "{text}"
        );
        assert!(text.starts_with("<div class=\"wide\"><table class=\"s1\"><thead>"), "{text}");
        let long = vec![vec!["<td>1</td>".to_owned(); 11]];
        assert!(table(&[], &long, None).starts_with("<div class=\"wide full\"><table class=\"s6\"><tbody>"));
        assert!(table(&[], &rows, Some(640)).contains("class=\"s4 words\""));
    }
}
