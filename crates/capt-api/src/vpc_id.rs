//! A VPC's ID as Terraform tells it, in an output or in a connection secret.
//!
//! Outputs come as text, whatever their type is in Terraform. Clouds write IDs as they like, so nothing is asked of an ID but
//! that it is one plain word: a list or an object would be handed on to the EKS template, and fail there in words that nobody
//! connects with the network.

use std::fmt;

/// Longer texts do not fit into the status, and are no ID.
const MAX: usize = 253;

/// What a text is that is no ID.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unfit {
    List,
    Object,
    Quoted,
    Blanks,
    Long,
}

impl fmt::Display for Unfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::List => f.write_str("a list"),
            Self::Object => f.write_str("an object"),
            Self::Quoted => f.write_str("a text in quotes"),
            Self::Blanks => f.write_str("a text with blanks or control characters"),
            Self::Long => write!(f, "a text of more than {MAX} bytes"),
        }
    }
}

/// The ID in this text; `None` when it says nothing: Terraform's null comes as a text, and a template may leave it empty.
pub fn parse(text: &str) -> Result<Option<&str>, Unfit> {
    let id = text.trim();
    match id.chars().next() {
        None => return Ok(None),
        _ if id == "null" => return Ok(None),
        Some('[') => return Err(Unfit::List),
        Some('{') => return Err(Unfit::Object),
        Some('"') => return Err(Unfit::Quoted),
        Some(_) => {}
    }
    if id.len() > MAX {
        return Err(Unfit::Long);
    }
    if id.contains(|c: char| c.is_whitespace() || c.is_control()) {
        return Err(Unfit::Blanks);
    }
    Ok(Some(id))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_plain_word_is_an_id_and_nothing_else() {
        for id in ["vpc-0a1b2c", "demo-vpc", "projects/p/global/networks/n", "7", "é"] {
            assert_eq!(parse(id), Ok(Some(id)));
            assert_eq!(parse(&format!(" {id}\n")), Ok(Some(id)));
        }
        for nothing in ["", " \n", "null"] {
            assert_eq!(parse(nothing), Ok(None), "{nothing:?}");
        }
        let long = "v".repeat(254);
        for (text, unfit) in [
            (r#"["vpc-1"]"#, Unfit::List),
            ("[]", Unfit::List),
            (r#"{"id":"vpc-1"}"#, Unfit::Object),
            (r#""vpc-1""#, Unfit::Quoted),
            ("vpc-1 vpc-2", Unfit::Blanks),
            ("vpc-1\u{7}", Unfit::Blanks),
            (&long, Unfit::Long),
        ] {
            assert_eq!(parse(text), Err(unfit), "{text:?}");
        }
    }
}
