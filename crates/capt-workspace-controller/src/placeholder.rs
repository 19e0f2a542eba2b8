//! `${key}` and `${key:-default}` in a template's text.
//!
//! Only a bare name between the braces is a placeholder. `${var.region}`, `${local.x}`, `${f(x)}` and whatever else HCL
//! may put there is not, and stays as it is; so does `$${`, which HCL reads as a literal `${`.

/// A piece of text, in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Piece<'a> {
    Text(&'a str),
    Placeholder(Placeholder<'a>),
    /// `$${`, the literal `${`.
    Escape,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Placeholder<'a> {
    pub(crate) key: &'a str,
    pub(crate) default: Option<&'a str>,
    /// As it stands in the text.
    pub(crate) source: &'a str,
}

/// The placeholder with which `text` begins.
pub(crate) fn at_start(text: &str) -> Option<Placeholder<'_>> {
    let inner = text.strip_prefix("${")?;
    let inner = inner.get(..closing(inner)?)?;
    let (key, default) = match inner.split_once(":-") {
        Some((key, default)) => (key, Some(default)),
        None => (inner, None),
    };
    let mut characters = key.chars();
    let begins = characters.next().is_some_and(|c| c.is_ascii_alphabetic() || c == '_');
    let goes_on = characters.all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-');
    let source = text.get(..inner.len() + 3)?;
    (begins && goes_on).then_some(Placeholder { key, default, source })
}

/// Where the brace stands that closes the placeholder; a default may hold braces of its own, such as `{}`.
fn closing(inner: &str) -> Option<usize> {
    let mut open = 0usize;
    for (at, character) in inner.char_indices() {
        match character {
            '{' => open += 1,
            '}' if open == 0 => return Some(at),
            '}' => open -= 1,
            _ => {}
        }
    }
    None
}

/// Splits a text into its pieces.
pub(crate) fn pieces(text: &str) -> Vec<Piece<'_>> {
    let mut pieces = Vec::new();
    let (mut rest, mut plain) = (text, 0);
    loop {
        let tail = rest.get(plain..).unwrap_or_default();
        let Some(sign) = tail.find('$') else { break };
        let at = plain + sign;
        let tail = rest.get(at..).unwrap_or_default();
        let (piece, length) = if tail.starts_with("$${") {
            (Piece::Escape, 3)
        } else if let Some(placeholder) = at_start(tail) {
            (Piece::Placeholder(placeholder), placeholder.source.len())
        } else {
            plain = at + 1;
            continue;
        };
        if at > 0 {
            pieces.push(Piece::Text(rest.get(..at).unwrap_or_default()));
        }
        pieces.push(piece);
        rest = rest.get(at + length..).unwrap_or_default();
        plain = 0;
    }
    if !rest.is_empty() {
        pieces.push(Piece::Text(rest));
    }
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(text: &str) -> Vec<(&str, Option<&str>)> {
        pieces(text)
            .into_iter()
            .filter_map(|piece| match piece {
                Piece::Placeholder(placeholder) => Some((placeholder.key, placeholder.default)),
                _ => None,
            })
            .collect()
    }

    #[test]
    fn a_bare_name_is_a_placeholder() {
        assert_eq!(
            keys("${a} and ${b-2}_${_c}"),
            [("a", None), ("b-2", None), ("_c", None)]
        );
        assert_eq!(keys("${a:-}${b:-x y}"), [("a", Some("")), ("b", Some("x y"))]);
        assert_eq!(
            keys("${a:-{}}${b:-{\"k\": {}}}"),
            [("a", Some("{}")), ("b", Some("{\"k\": {}}"))]
        );
    }

    #[test]
    fn what_hcl_writes_between_braces_is_not() {
        for text in [
            "${var.a}",
            "${local.x}",
            "${f(x)}",
            "${ a }",
            "${1a}",
            "${}",
            "${a",
            "$a",
            "${a ? b : c}",
            "%{a}",
        ] {
            assert_eq!(keys(text), [], "{text}");
            assert_eq!(pieces(text), [Piece::Text(text)], "{text}");
        }
    }

    #[test]
    fn an_escape_hides_a_placeholder() {
        assert_eq!(pieces("$${a}"), [Piece::Escape, Piece::Text("a}")]);
        assert_eq!(keys("$${a}${b}"), [("b", None)]);
    }

    #[test]
    fn nothing_is_lost() {
        for text in ["", "$", "x$", "a${b}c$${d}e${var.f}g$", "${a}${b}", "ü${k}ü", "$$$${x}"] {
            let again: String = pieces(text)
                .into_iter()
                .map(|piece| match piece {
                    Piece::Text(text) => text,
                    Piece::Placeholder(placeholder) => placeholder.source,
                    Piece::Escape => "$${",
                })
                .collect();
            assert_eq!(again, text);
        }
    }
}
