//! What Terraform asks for: the template's variables, as one JSON object in the environment. Not on the command line, because
//! Terraform prints the command line in its errors.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::time::Duration;

use anyhow::{Context, Result, bail};

const VARIABLE: &str = "CAPT_CLOUD_INPUT";

/// The variables by name; a variable that is not given and one that is empty are the same.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Inputs(BTreeMap<String, String>);

impl Inputs {
    pub(super) fn from_environment() -> Result<Self> {
        let text = std::env::var(VARIABLE).with_context(|| {
            format!("{VARIABLE} is not set: Terraform calls this command and gives it the template's variables there, as a JSON object")
        })?;
        Self::parse(&text)
    }

    fn parse(text: &str) -> Result<Self> {
        let variables: BTreeMap<String, String> =
            serde_json::from_str(text).with_context(|| format!("{VARIABLE} is not a JSON object of strings"))?;
        Ok(Self(variables))
    }

    pub(super) fn get(&self, variable: &str) -> Option<&str> {
        self.0
            .get(variable)
            .map(String::as_str)
            .filter(|value| !value.is_empty())
    }

    fn required(&self, variable: &str) -> Result<&str> {
        self.get(variable).with_context(|| format!("{variable} is empty"))
    }

    /// The name of the resource: that of Terraform's workspace, which is unique.
    pub(super) fn name(&self) -> Result<&str> {
        let name = self.required("name")?;
        check_name(name)?;
        Ok(name)
    }

    /// What goes into the ledger: all but the name, which the entry has, and the faults, which are not of the resource.
    pub(super) fn recorded(&self) -> BTreeMap<String, String> {
        let left_out =
            |variable: &str| variable == "name" || variable.starts_with("fault_") || variable.starts_with("slow_");
        self.0
            .iter()
            .filter(|(variable, _)| !left_out(variable))
            .map(|(variable, value)| (variable.clone(), value.clone()))
            .collect()
    }

    pub(super) fn check_text(&self, variable: &str) -> Result<()> {
        self.required(variable).map(drop)
    }

    pub(super) fn check_region(&self) -> Result<()> {
        let region = self.required("region")?;
        let parts: Vec<&str> = region.split('-').collect();
        let valid = match parts.as_slice() {
            [area, middle @ .., number] => {
                let lower = |part: &str| !part.is_empty() && part.bytes().all(|c| c.is_ascii_lowercase());
                area.len() == 2
                    && lower(area)
                    && !middle.is_empty()
                    && middle.iter().all(|part| lower(part))
                    && digits(number)
            }
            _ => false,
        };
        if !valid {
            bail!("region `{region}` is not a region's name, such as eu-central-1");
        }
        Ok(())
    }

    /// A network of the size that AWS accepts for a VPC.
    pub(super) fn check_cidr(&self, variable: &str) -> Result<()> {
        let cidr = self.required(variable)?;
        let valid = cidr.split_once('/').is_some_and(|(address, length)| {
            address.parse::<Ipv4Addr>().is_ok() && length.parse().is_ok_and(|length: u8| (16..=28).contains(&length))
        });
        if !valid {
            bail!("{variable} `{cidr}` is not an IPv4 network of /16 to /28, such as 10.0.0.0/16");
        }
        Ok(())
    }

    pub(super) fn check_vpc_id(&self) -> Result<()> {
        let id = self.required("vpc_id")?;
        let hex =
            |rest: &str| !rest.is_empty() && rest.bytes().all(|c| c.is_ascii_digit() || (b'a'..=b'f').contains(&c));
        if !id.strip_prefix("vpc-").is_some_and(hex) {
            bail!("vpc_id `{id}` is not a VPC's id, such as vpc-0a1b2c3d");
        }
        Ok(())
    }

    /// Major and minor version; EKS takes nothing else.
    pub(super) fn kubernetes_version(&self) -> Result<(u32, u32)> {
        let version = self.required("kubernetes_version")?;
        parse_version(version)
            .with_context(|| format!("kubernetes_version `{version}` is not a major and minor version, such as 1.31"))
    }

    /// Not given means `default`.
    pub(super) fn flag(&self, variable: &str, default: bool) -> Result<bool> {
        match self.get(variable) {
            None => Ok(default),
            Some("true") => Ok(true),
            Some("false") => Ok(false),
            Some(other) => bail!("{variable} `{other}` is neither true nor false"),
        }
    }

    pub(super) fn check_json(&self, variable: &str) -> Result<()> {
        if let Some(text) = self.get(variable) {
            serde_json::from_str::<serde_json::Value>(text).with_context(|| format!("{variable} is not JSON"))?;
        }
        Ok(())
    }

    /// Not given means at once.
    pub(super) fn seconds(&self, variable: &str) -> Result<Duration> {
        let Some(text) = self.get(variable) else {
            return Ok(Duration::ZERO);
        };
        let seconds: u32 = text
            .parse()
            .ok()
            .with_context(|| format!("{variable} `{text}` is not a number of seconds"))?;
        Ok(Duration::from_secs(seconds.into()))
    }
}

pub(super) fn parse_version(version: &str) -> Option<(u32, u32)> {
    let (major, minor) = version
        .split_once('.')
        .filter(|(major, minor)| digits(major) && digits(minor))?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

/// Names become file names, keys in etcd and part of a log's name.
pub(super) fn check_name(name: &str) -> Result<()> {
    let valid = (1..=63).contains(&name.len())
        && name
            .bytes()
            .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'-' || c == b'.')
        && name.starts_with(|c: char| c.is_ascii_alphanumeric())
        && name.ends_with(|c: char| c.is_ascii_alphanumeric());
    if !valid {
        bail!(
            "name `{name}` has other than 1 to 63 lower-case letters, digits, dashes and dots, with a letter or digit at both ends"
        );
    }
    Ok(())
}

fn digits(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|c| c.is_ascii_digit())
}

#[cfg(test)]
pub(super) fn inputs(variables: &[(&str, &str)]) -> Inputs {
    Inputs(
        variables
            .iter()
            .map(|(variable, value)| (variable.to_string(), value.to_string()))
            .collect(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_refusal_names_the_variable_and_the_value() {
        type Check = fn(&Inputs) -> Result<()>;
        let cases: &[(&str, Check, &[&str], &[&str])] = &[
            (
                "name",
                |i| i.name().map(drop),
                &["a", "a-b.c-9", "0"],
                &["A", "a/b", "..", "-a", "a-", "a b"],
            ),
            (
                "region",
                Inputs::check_region,
                &["eu-central-1", "us-gov-west-1"],
                &["eu", "eu-1", "EU-central-1", "eu-central-", "eu--1", "-a-1"],
            ),
            (
                "cidr",
                |i| i.check_cidr("cidr"),
                &["10.0.0.0/16", "192.168.1.0/28"],
                &["10.0.0.0", "10.0.0.0/8", "10.0.0/16", "x/16"],
            ),
            (
                "vpc_id",
                Inputs::check_vpc_id,
                &["vpc-0a1b"],
                &["vpc-", "0a1b", "vpc-xyz", "vpc-0A"],
            ),
            (
                "kubernetes_version",
                |i| i.kubernetes_version().map(drop),
                &["1.31"],
                &["v1.31", "1.31.2", "1", "1.", ".1", "1.x"],
            ),
            (
                "public",
                |i| i.flag("public", true).map(drop),
                &["true", "false"],
                &["yes", "True"],
            ),
            ("tags", |i| i.check_json("tags"), &["{}", "[1]"], &["{", "a=b"]),
            (
                "slow_seconds",
                |i| i.seconds("slow_seconds").map(drop),
                &["0", "12"],
                &["-1", "1.5", "soon"],
            ),
        ];
        for (variable, check, good, bad) in cases {
            for value in *good {
                check(&inputs(&[(variable, value)])).unwrap_or_else(|error| panic!("{variable}={value}: {error:#}"));
            }
            for value in *bad {
                let Err(error) = check(&inputs(&[(variable, value)])) else {
                    panic!("{variable}={value} was accepted");
                };
                assert!(format!("{error:#}").contains(variable), "{error:#}");
            }
        }
    }

    #[test]
    fn what_is_needed_and_empty_is_named() {
        for (variable, error) in [
            ("name", inputs(&[]).name().unwrap_err()),
            ("region", inputs(&[("region", "")]).check_region().unwrap_err()),
            ("vpc_name", inputs(&[]).check_text("vpc_name").unwrap_err()),
        ] {
            assert_eq!(error.to_string(), format!("{variable} is empty"));
        }
    }

    #[test]
    fn a_long_name_is_refused() {
        assert!(check_name(&"a".repeat(63)).is_ok());
        assert!(check_name(&"a".repeat(64)).is_err());
    }

    #[test]
    fn faults_and_the_name_stay_out_of_the_ledger() {
        let given = Inputs::parse(
            r#"{"name":"a","region":"eu-central-1","fault_apply":"x","fault_apply_once":"","slow_seconds":"1"}"#,
        )
        .unwrap();
        assert_eq!(given.recorded().into_keys().collect::<Vec<_>>(), ["region"]);
        assert!(
            Inputs::parse("[]")
                .unwrap_err()
                .to_string()
                .contains("CAPT_CLOUD_INPUT")
        );
    }
}
