//! Variables inside a Terraform module, without a way out of the place where they stand.
//!
//! A value is data. Put into HCL as text it could close the string it stands in, begin an interpolation, or add a resource.
//! So the module is read just closely enough to know, for each placeholder, whether it stands in a string (the value is
//! escaped), in a heredoc (a value that could end it is refused), in code (only a number or a boolean may stand there) or in
//! a comment (it stays as it is).

use std::collections::BTreeSet;

use serde_json::Value;

use crate::placeholder::{self, Piece, pieces};

/// A value that cannot stand where the module wants it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Unsafe {
    pub(crate) key: String,
    pub(crate) why: String,
}

/// Looks a variable up; `None` leaves the placeholder as it stands, because HCL may know what it means.
type Lookup<'f, 'v> = &'f dyn Fn(&str) -> Option<&'v str>;

/// Fills in an inline HCL module. A name that a `for` binds is HCL's own, whatever variable has the same name.
pub(crate) fn hcl(text: &str, lookup: Lookup<'_, '_>) -> Result<String, Unsafe> {
    let bound = bound_names(text);
    fill(Scanner::new(text), &|key| lookup(key).filter(|_| !bound.contains(key)))
}

fn fill(mut scanner: Scanner<'_>, lookup: Lookup<'_, '_>) -> Result<String, Unsafe> {
    let mut out = Output::default();
    while let Some(step) = scanner.next() {
        match step {
            Step::Text(text) => out.text(text)?,
            Step::Placeholder {
                source,
                key,
                default,
                place,
            } => match (lookup(key).or(default), place) {
                (Some(value), Place::Quoted) => out.value(key, value, true)?,
                (Some(value), Place::Template) => out.value(key, value, false)?,
                (Some(value), Place::Heredoc(_)) if value.chars().any(|c| c.is_control() && c != '\t') => {
                    return Err(refuse(key, "it stands in a heredoc, which a line break would end"));
                }
                (Some(value), Place::Heredoc(end)) => {
                    out.value(key, value, false)?;
                    out.watch_line(key, end);
                }
                (Some(value), Place::Code) if is_literal(value) => out.text(value)?,
                (Some(_), Place::Code) => {
                    return Err(refuse(
                        key,
                        "it stands outside of quotes, where only a number, true, false or null is no code",
                    ));
                }
                (Some(_), Place::Comment) | (None, _) => out.text(source)?,
            },
        }
    }
    out.finish()
}

/// Fills in an inline module in Terraform's JSON syntax: each of its strings is a template of its own.
pub(crate) fn json(text: &str, lookup: Lookup<'_, '_>) -> Result<String, Unsafe> {
    let Ok(mut module) = serde_json::from_str::<Value>(text) else {
        // Terraform will say better than we could what is wrong with it; nothing of ours goes into it.
        return Ok(text.to_owned());
    };
    let changed = json_value(&mut module, lookup)?;
    Ok(if changed { module.to_string() } else { text.to_owned() })
}

fn json_value(value: &mut Value, lookup: Lookup<'_, '_>) -> Result<bool, Unsafe> {
    match value {
        Value::String(text) => {
            let bound = bound_names(text);
            let filled = fill(Scanner::template(text), &|key| {
                lookup(key).filter(|_| !bound.contains(key))
            })?;
            let changed = filled != *text;
            *text = filled;
            Ok(changed)
        }
        Value::Array(items) => items
            .iter_mut()
            .try_fold(false, |changed, item| Ok(json_value(item, lookup)? | changed)),
        Value::Object(fields) => fields
            .values_mut()
            .try_fold(false, |changed, field| Ok(json_value(field, lookup)? | changed)),
        _ => Ok(false),
    }
}

/// Fills in the address of a remote module. A value is one word of it: with a slash or a question mark it could lead to
/// another repository. Only an address that is one placeholder as a whole leaves the choice to its variable.
pub(crate) fn address(text: &str, lookup: Lookup<'_, '_>) -> Result<String, Unsafe> {
    let pieces = pieces(text);
    let whole = matches!(pieces.as_slice(), [Piece::Placeholder(_)]);
    let fits = |value: &str| match whole {
        true => !value.chars().any(|c| c.is_control() || c.is_whitespace()),
        false => value.chars().all(|c| c.is_ascii_alphanumeric() || "._-".contains(c)) && !value.contains(".."),
    };
    let mut out = String::new();
    for piece in pieces {
        match piece {
            Piece::Text(text) => out.push_str(text),
            Piece::Escape => out.push_str("$${"),
            Piece::Placeholder(found) => match lookup(found.key).or(found.default) {
                Some(value) if fits(value) => out.push_str(value),
                Some(_) => {
                    return Err(refuse(
                        found.key,
                        "it stands in the address of a module, where only letters, digits, dots, dashes and underscores lead nowhere else",
                    ));
                }
                None => out.push_str(found.source),
            },
        }
    }
    Ok(out)
}

/// The placeholders of an inline HCL module that HCL itself does not explain: a name that a `for` binds is HCL's own.
pub(crate) fn expected(text: &str) -> BTreeSet<&str> {
    let bound = bound_names(text);
    let mut keys = BTreeSet::new();
    let mut scanner = Scanner::new(text);
    while let Some(step) = scanner.next() {
        if let Step::Placeholder {
            key,
            default: None,
            place: Place::Quoted | Place::Heredoc(_) | Place::Code,
            ..
        } = step
            && !bound.contains(key)
        {
            keys.insert(key);
        }
    }
    keys
}

fn bound_names(text: &str) -> BTreeSet<&str> {
    let mut names = BTreeSet::new();
    let mut words = text
        .split(|c: char| !(c.is_ascii_alphanumeric() || c == '_' || c == '-'))
        .filter(|word| !word.is_empty());
    while let Some(word) = words.next() {
        if word == "for" {
            names.extend(words.by_ref().take_while(|word| *word != "in").take(2));
        }
    }
    names
}

fn refuse(key: &str, why: &str) -> Unsafe {
    Unsafe {
        key: key.to_owned(),
        why: why.to_owned(),
    }
}

fn is_literal(value: &str) -> bool {
    let digits = value.strip_prefix('-').unwrap_or(value);
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, "0"));
    let number = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    matches!(value, "true" | "false" | "null") || (number(whole) && number(fraction))
}

/// Text under construction inside a template, in which `${` and `%{` must not come about by accident.
#[derive(Default)]
struct Output {
    text: String,
    /// The variable whose value ended in `$` or `%`, when nothing has followed it yet.
    open: Option<String>,
    /// A variable in the current line of a heredoc, and the word that would end it there.
    line: Option<(String, String)>,
}

impl Output {
    /// Text of the module itself.
    fn text(&mut self, text: &str) -> Result<(), Unsafe> {
        if let Some(key) = self.open.take()
            && text.starts_with(['{', '$', '%'])
        {
            return Err(refuse(
                &key,
                "it ends in $ or %, which together with what follows would begin an interpolation",
            ));
        }
        if text.starts_with('\n') {
            self.check_line()?;
        }
        self.text.push_str(text);
        Ok(())
    }

    /// Remembers that the current line of a heredoc holds a value.
    fn watch_line(&mut self, key: &str, end: &str) {
        self.line = Some((key.to_owned(), end.to_owned()));
    }

    /// A value may complete the word that ends its heredoc; what follows would then be code.
    fn check_line(&mut self) -> Result<(), Unsafe> {
        let Some((key, end)) = self.line.take() else {
            return Ok(());
        };
        let line = self.text.rsplit('\n').next().unwrap_or_default();
        if line.trim() == end {
            return Err(refuse(
                &key,
                "together with its line it would end the heredoc it stands in",
            ));
        }
        Ok(())
    }

    fn finish(mut self) -> Result<String, Unsafe> {
        self.check_line()?;
        Ok(self.text)
    }

    fn value(&mut self, key: &str, value: &str, quoted: bool) -> Result<(), Unsafe> {
        for character in value.chars() {
            match character {
                // The sign may stand in the text before the placeholder, or in the value before this one.
                '{' if self.text.ends_with(['$', '%']) => {
                    let sign = self.text.chars().next_back().unwrap_or('$');
                    if self.text.trim_end_matches(sign).len() + 1 < self.text.len() {
                        return Err(refuse(
                            key,
                            "several of $ or % before { cannot be told from an interpolation",
                        ));
                    }
                    self.text.push(sign);
                    self.text.push('{');
                }
                '\\' if quoted => self.text.push_str("\\\\"),
                '"' if quoted => self.text.push_str("\\\""),
                '\n' if quoted => self.text.push_str("\\n"),
                '\r' if quoted => self.text.push_str("\\r"),
                '\t' if quoted => self.text.push_str("\\t"),
                other if quoted && other.is_control() => self.text.push_str(&format!("\\u{:04x}", u32::from(other))),
                other => self.text.push(other),
            }
        }
        if !value.is_empty() {
            self.open = value.ends_with(['$', '%']).then(|| key.to_owned());
        }
        Ok(())
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place<'a> {
    Code,
    Quoted,
    /// With the word that ends it.
    Heredoc(&'a str),
    /// A string of a JSON module: a template without quotes around it.
    Template,
    Comment,
}

enum Step<'a> {
    Text(&'a str),
    Placeholder {
        source: &'a str,
        key: &'a str,
        default: Option<&'a str>,
        place: Place<'a>,
    },
}

enum Mode<'a> {
    /// Open braces since the interpolation began; the file itself begins none.
    Code {
        braces: usize,
    },
    Quoted,
    /// With the word that ends it, on a line of its own.
    Heredoc(&'a str),
    Template,
    LineComment,
    BlockComment,
}

/// Walks through HCL and knows, at each character, what it belongs to.
struct Scanner<'a> {
    rest: &'a str,
    modes: Vec<Mode<'a>>,
    /// A heredoc that begins with the next line.
    announced: Option<&'a str>,
}

impl<'a> Scanner<'a> {
    fn new(text: &'a str) -> Self {
        Self {
            rest: text,
            modes: vec![Mode::Code { braces: 0 }],
            announced: None,
        }
    }

    /// A text that is a template as a whole.
    fn template(text: &'a str) -> Self {
        Self {
            rest: text,
            modes: vec![Mode::Template],
            announced: None,
        }
    }

    fn next(&mut self) -> Option<Step<'a>> {
        if self.rest.is_empty() {
            return None;
        }
        let place = match self.modes.last() {
            Some(Mode::Quoted) => Place::Quoted,
            Some(Mode::Heredoc(end)) => Place::Heredoc(end),
            Some(Mode::Template) => Place::Template,
            Some(Mode::LineComment | Mode::BlockComment) => Place::Comment,
            Some(Mode::Code { .. }) | None => Place::Code,
        };
        if let Some(found) = placeholder::at_start(self.rest) {
            self.advance(found.source.len());
            return Some(Step::Placeholder {
                source: found.source,
                key: found.key,
                default: found.default,
                place,
            });
        }
        let length = match self.modes.last() {
            Some(Mode::Quoted) => self.quoted(),
            Some(Mode::Heredoc(end)) => {
                let end = *end;
                self.heredoc(Some(end))
            }
            Some(Mode::Template) => self.heredoc(None),
            Some(Mode::LineComment) => self.line_comment(),
            Some(Mode::BlockComment) => self.block_comment(),
            Some(Mode::Code { .. }) | None => self.code(),
        };
        let text = self.rest.get(..length).unwrap_or(self.rest);
        self.advance(text.len());
        Some(Step::Text(text))
    }

    fn advance(&mut self, length: usize) {
        self.rest = self.rest.get(length..).unwrap_or_default();
    }

    fn first(&self) -> usize {
        self.rest.chars().next().map_or(0, char::len_utf8)
    }

    fn starts_with_any(&self, signs: &[&str]) -> bool {
        signs.iter().any(|sign| self.rest.starts_with(sign))
    }

    fn quoted(&mut self) -> usize {
        if self.starts_with_any(&["$${", "%%{"]) {
            return 3;
        }
        if self.starts_with_any(&["${", "%{"]) {
            self.modes.push(Mode::Code { braces: 0 });
            return 2;
        }
        if self.rest.starts_with('\\') {
            // The escaped character, a quote perhaps, is not looked at.
            return 1 + self.rest.chars().nth(1).map_or(0, char::len_utf8);
        }
        if self.starts_with_any(&["\"", "\n"]) {
            // A line break ends a broken string too: Terraform will complain, and the rest is still read sensibly.
            self.modes.pop();
        }
        self.first()
    }

    fn heredoc(&mut self, end: Option<&str>) -> usize {
        if self.starts_with_any(&["$${", "%%{"]) {
            return 3;
        }
        if self.starts_with_any(&["${", "%{"]) {
            self.modes.push(Mode::Code { braces: 0 });
            return 2;
        }
        if let Some(next) = self.rest.strip_prefix('\n') {
            let line = next.lines().next().unwrap_or_default();
            if Some(line.trim()) == end {
                self.modes.pop();
                return 1 + line.len();
            }
            return 1;
        }
        self.first()
    }

    fn line_comment(&mut self) -> usize {
        if self.rest.starts_with('\n') {
            self.modes.pop();
            // The line break itself belongs to the code: it may begin a heredoc.
            return self.code();
        }
        self.first()
    }

    fn block_comment(&mut self) -> usize {
        if self.rest.starts_with("*/") {
            self.modes.pop();
            return 2;
        }
        self.first()
    }

    fn code(&mut self) -> usize {
        if self.rest.starts_with('\n') {
            if let Some(end) = self.announced.take() {
                let line = self
                    .rest
                    .get(1..)
                    .and_then(|rest| rest.lines().next())
                    .unwrap_or_default();
                if line.trim() == end {
                    return 1 + line.len();
                }
                self.modes.push(Mode::Heredoc(end));
            }
            return 1;
        }
        if self.starts_with_any(&["#", "//"]) {
            self.modes.push(Mode::LineComment);
            return self.first();
        }
        if self.rest.starts_with("/*") {
            self.modes.push(Mode::BlockComment);
            return 2;
        }
        if let Some(after) = self.rest.strip_prefix("<<") {
            let indent = usize::from(after.starts_with('-'));
            let word = after.get(indent..).unwrap_or_default();
            let length = word
                .find(|c: char| !(c.is_ascii_alphanumeric() || c == '_' || c == '-'))
                .unwrap_or(word.len());
            if length > 0 {
                self.announced = word.get(..length);
            }
            return 2 + indent + length;
        }
        match self.rest.chars().next() {
            Some('"') => self.modes.push(Mode::Quoted),
            Some('{') => {
                if let Some(Mode::Code { braces }) = self.modes.last_mut() {
                    *braces += 1;
                }
            }
            Some('}') => {
                // The end of an interpolation; at the top of the file a stray brace changes nothing.
                let nested = self.modes.len() > 1;
                match self.modes.last_mut() {
                    Some(Mode::Code { braces }) if *braces > 0 => *braces -= 1,
                    _ if nested => drop(self.modes.pop()),
                    _ => {}
                }
            }
            _ => {}
        }
        self.first()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const KNOWN: &[(&str, &str)] = &[
        ("name", "demo"),
        ("number", "3"),
        ("quote", "a\"b\\c\nd"),
        ("inject", "${file(\"x\")}%{if true}"),
        ("sign", "cost$"),
        ("brace", "{x}"),
    ];

    fn known(key: &str) -> Option<&'static str> {
        KNOWN.iter().find(|(known, _)| *known == key).map(|(_, value)| *value)
    }

    #[test]
    fn a_value_in_quotes_stays_in_its_quotes() {
        for (module, filled) in [
            ("a = \"${name}\"", "a = \"demo\""),
            ("a = \"${quote}\"", "a = \"a\\\"b\\\\c\\nd\""),
            ("a = \"${inject}\"", "a = \"$${file(\\\"x\\\")}%%{if true}\""),
            ("a = \"%${brace}\"", "a = \"%%{x}\""),
            ("a = \"${missing:-it}\"", "a = \"it\""),
            ("a = \"\\\"${name}\"", "a = \"\\\"demo\""),
            ("a = \"${sign}\"", "a = \"cost$\""),
            ("count = ${number}", "count = 3"),
            ("a = <<EOT\n${name}\nEOT\nb = ${number}", "a = <<EOT\ndemo\nEOT\nb = 3"),
            ("a = \"${upper(\"${name}\")}\"", "a = \"${upper(\"demo\")}\""),
        ] {
            assert_eq!(hcl(module, &known).as_deref(), Ok(filled), "{module}");
        }
    }

    #[test]
    fn hcl_of_the_module_stays_untouched() {
        for module in [
            "a = \"${var.name}-${local.x}-${each.key}\"",
            "a = [for k, v in var.m : \"${k}=${v}\"]",
            "a = \"$${name}\"",
            "# ${name}\n// ${quote}\n/* ${inject}\n */ a = 1",
            "a = \"%{if true}x%{endif}\"",
            "a = <<-EOT\n  ${var.x}\n  EOT\nb = { c = \"}\" }",
        ] {
            assert_eq!(hcl(module, &known).as_deref(), Ok(module));
        }
    }

    #[test]
    fn what_could_change_the_module_is_refused() {
        for (module, key, why) in [
            ("a = ${name}", "name", "outside of quotes"),
            ("a = \"${upper(${inject})}\"", "inject", "outside of quotes"),
            ("a = <<EOT\n${quote}\nEOT\n", "quote", "heredoc"),
            ("a = \"${sign}{x}\"", "sign", "would begin an interpolation"),
            ("a = \"${sign}${var.x}\"", "sign", "would begin an interpolation"),
        ] {
            let refused = hcl(module, &known).unwrap_err();
            assert_eq!(refused.key, key);
            assert!(refused.why.contains(why), "{module}: {}", refused.why);
        }
        assert!(
            address("git::https://x/y?ref=${quote}", &known)
                .unwrap_err()
                .why
                .contains("address")
        );
        assert_eq!(
            address("git::https://x/${name}?ref=${ref:-main}", &known).as_deref(),
            Ok("git::https://x/demo?ref=main")
        );
    }

    #[test]
    fn a_heredoc_is_not_ended_by_a_value() {
        let lookup = |key: &str| match key {
            "end" => Some("EOT"),
            "half" => Some("T"),
            "empty" => Some(""),
            "fine" => Some("EOT and more"),
            _ => None,
        };
        for module in [
            "a = <<EOT\n${end}\nb\nEOT\n",
            "a = <<-EOT\n  EO${half}\nEOT\n",
            "a = <<EOT\nEOT${empty}\nEOT\n",
            "a = <<EOT\n${end}",
        ] {
            let refused = hcl(module, &lookup).unwrap_err();
            assert!(
                refused.why.contains("would end the heredoc"),
                "{module}: {}",
                refused.why
            );
        }
        assert_eq!(
            hcl("a = <<EOT\n${fine}\nEOT\n", &lookup).as_deref(),
            Ok("a = <<EOT\nEOT and more\nEOT\n")
        );
    }

    #[test]
    fn a_value_in_an_interpolation_of_a_json_module_is_no_code() {
        let escape = |key: &str| (key == "name").then_some("x\" == \"x\" ? file(\"/secret\") : \"");
        let module = r#"{"a": "${upper(\"${name}\")}"}"#;
        let filled: Value = serde_json::from_str(&json(module, &escape).unwrap()).unwrap();
        assert_eq!(
            filled["a"],
            "${upper(\"x\\\" == \\\"x\\\" ? file(\\\"/secret\\\") : \\\"\")}"
        );
        let code = json(r#"{"a": "%{ if ${name} }x%{ endif }"}"#, &escape).unwrap_err();
        assert!(code.why.contains("outside of quotes"), "{}", code.why);
    }

    #[test]
    fn a_name_that_a_for_binds_is_hcls_own() {
        let module = "a = [for name in [\"x\"] : \"${name}!\"]";
        assert_eq!(hcl(module, &known).as_deref(), Ok(module));
    }

    #[test]
    fn an_address_leads_nowhere_else() {
        let lookup = |key: &str| match key {
            "evil" => Some("evil/x.git//sub?ref=main&ignored="),
            "up" => Some(".."),
            "url" => Some("git::https://example.com/x.git?ref=v1"),
            _ => None,
        };
        for module in [
            "git::https://git.corp/${evil}/vpc.git",
            "git::https://git.corp/${up}/vpc.git",
        ] {
            assert!(address(module, &lookup).is_err(), "{module}");
        }
        assert_eq!(
            address("${url}", &lookup).as_deref(),
            Ok("git::https://example.com/x.git?ref=v1")
        );
    }

    #[test]
    fn json_is_filled_in_inside_its_strings() {
        let module = r#"{"output":{"a":{"value":"${name} ${var.x} ${quote}"}},"n":1}"#;
        let filled: Value = serde_json::from_str(&json(module, &known).unwrap()).unwrap();
        assert_eq!(
            filled,
            serde_json::json!({"output": {"a": {"value": "demo ${var.x} a\"b\\c\nd"}}, "n": 1})
        );
        let inject: Value = serde_json::from_str(&json(r#"{"a":"${inject}"}"#, &known).unwrap()).unwrap();
        assert_eq!(inject["a"], "$${file(\"x\")}%%{if true}");
        assert_eq!(
            json("{ \"a\" : \"x\" }", &known).as_deref(),
            Ok("{ \"a\" : \"x\" }"),
            "untouched when nothing is filled in"
        );
        assert_eq!(json("not json ${name}", &known).as_deref(), Ok("not json ${name}"));
    }

    #[test]
    fn expected_names_leave_out_what_hcl_binds() {
        let module = "a = \"${name}\"\nb = [for k, v in x : \"${k}${v}${other}\"]\n# ${comment}\nc = \"${given:-1}\"";
        assert_eq!(expected(module).into_iter().collect::<Vec<_>>(), ["name", "other"]);
    }

    /// Reads back an HCL string without interpolations, as HCL defines it.
    fn unquote(text: &str) -> Option<String> {
        let inner = text.strip_prefix('"')?.strip_suffix('"')?;
        let mut out = String::new();
        let mut rest = inner;
        while let Some(c) = rest.chars().next() {
            if rest.starts_with("$${") || rest.starts_with("%%{") {
                out.push_str(rest.get(1..3)?);
                rest = rest.get(3..)?;
                continue;
            }
            if rest.starts_with("${") || rest.starts_with("%{") || c == '"' || c == '\n' {
                return None;
            }
            if c == '\\' {
                let escaped = rest.chars().nth(1)?;
                let (value, length) = match escaped {
                    'n' => ('\n', 2),
                    'r' => ('\r', 2),
                    't' => ('\t', 2),
                    'u' => (char::from_u32(u32::from_str_radix(rest.get(2..6)?, 16).ok()?)?, 6),
                    other => (other, 2),
                };
                out.push(value);
                rest = rest.get(length..)?;
                continue;
            }
            out.push(c);
            rest = rest.get(c.len_utf8()..)?;
        }
        Some(out)
    }

    proptest! {
        #[test]
        fn any_value_in_quotes_is_read_back_as_it_was_or_refused(value in "\\PC*|[${%}\"\\\\\n\r\t a-z]{0,12}") {
            let lookup = |key: &str| (key == "v").then_some(value.as_str());
            if let Ok(filled) = hcl("\"${v}\"", &lookup) {
                prop_assert_eq!(unquote(&filled), Some(value.clone()));
            }
        }

        #[test]
        fn two_values_side_by_side_make_no_interpolation(a in "[${%}x]{0,4}", b in "[${%}x]{0,4}") {
            let lookup = |key: &str| match key { "a" => Some(a.as_str()), "b" => Some(b.as_str()), _ => None };
            if let Ok(filled) = hcl("\"-${a}${b}{-\"", &lookup) {
                prop_assert_eq!(unquote(&filled), Some(format!("-{a}{b}{{-")));
            }
        }

        /// What stands around a value is the module's own to the last byte, and what stands for the value reads as it.
        #[test]
        fn a_value_stays_between_what_stands_around_it(value in "(\\PC|[${%}\"\\\\\n\r\t<#/*]){0,30}|EOT|\nEOT\n|.{0,3}EOT.{0,3}") {
            let lookup = |key: &str| (key == "v").then_some(value.as_str());
            let (head, tail) = ("variable \"a\" {}\noutput \"o\" {\n  value = ", "\n}\nb = [1, \"x\"] # end\n");
            if let Ok(filled) = hcl(&format!("{head}\"<${{v}}>\"{tail}"), &lookup) {
                let inner = filled.strip_prefix(head).and_then(|rest| rest.strip_suffix(tail));
                prop_assert_eq!(inner.and_then(unquote), Some(format!("<{value}>")));
            }
            let (head, tail) = ("a = <<EOT\n", "\nEOT\nb = 1\n");
            if let Ok(filled) = hcl(&format!("{head}${{v}}{tail}"), &lookup) {
                let body = filled.strip_prefix(head).and_then(|rest| rest.strip_suffix(tail)).unwrap_or("\n");
                prop_assert!(!body.contains(['\n', '\r']) && body.trim() != "EOT", "{:?}", filled);
                prop_assert_eq!(body.replace("$${", "${").replace("%%{", "%{"), value.clone());
            }
            // Each text of a JSON module is a template of its own: what is read back is the value with its signs escaped.
            if let Ok(filled) = json(r#"{"a": {"b": ["<${v}>", 1]}}"#, &lookup) {
                let module: Value = serde_json::from_str(&filled).unwrap();
                let read = module["a"]["b"][0].as_str().unwrap_or_default().replace("$${", "${").replace("%%{", "%{");
                prop_assert_eq!(read, format!("<{value}>"));
                prop_assert_eq!(&module["a"]["b"][1], &serde_json::json!(1));
            }
        }

        #[test]
        fn a_module_without_known_names_is_left_alone(module in "(\\PC|[\n\"${}#/*<-])*") {
            let text = module.clone();
            let nothing = |_: &str| None;
            let untouched = !text.contains(":-");
            if untouched {
                prop_assert_eq!(hcl(&text, &nothing), Ok(text.clone()));
            }
        }
    }
}
