//! What `terraform plan`, `apply` and `destroy` do to a state, and how the provider reports their errors.

use std::collections::BTreeSet;
use std::io::Write;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use flate2::Compression;
use flate2::write::GzEncoder;

use super::module::{Desired, Diagnostic, Faults};
use super::state::{Output, Resource, State};

/// Whether a plan would show a difference, in resources or in outputs.
pub(super) fn differs(desired: &Desired, state: &State) -> bool {
    let resources_match = desired.resources.len() == state.resources.len()
        && desired.resources.iter().all(|(address, wanted)| {
            state
                .resources
                .get(address)
                .is_some_and(|made| !made.tainted && made.attributes == wanted.attributes)
        });
    let outputs_match = desired.outputs.len() == state.outputs.len()
        && desired.outputs.iter().all(|(name, output)| {
            state
                .outputs
                .get(name)
                .is_some_and(|stored| stored.value == output.value && stored.sensitive == output.sensitive)
        });
    !(resources_match && outputs_match)
}

/// Brings the state to what is desired, or as far as it gets before the injected fault.
///
/// A fault strikes as a failing provisioner does: its resource stays in the state, tainted; what needs that resource, an
/// output included, stays as it was; everything else is made.
pub(super) fn apply(desired: &Desired, state: &mut State) -> Result<(), Diagnostic> {
    let fault = strike(&desired.faults, state);
    let broken = fault.as_ref().and_then(|_| first_made(desired));
    let blocked = broken.map(|address| dependents(desired, address)).unwrap_or_default();

    state
        .resources
        .retain(|address, _| desired.resources.contains_key(address));
    for (address, wanted) in &desired.resources {
        if !blocked.contains(address) {
            let made = Resource {
                attributes: wanted.attributes.clone(),
                tainted: Some(address) == broken,
            };
            state.resources.insert(address.clone(), made);
        }
    }
    state.outputs.retain(|name, _| desired.outputs.contains_key(name));
    for (name, wanted) in &desired.outputs {
        if !wanted
            .needs
            .iter()
            .any(|address| Some(address) == broken || blocked.contains(address))
        {
            let set = Output {
                value: wanted.value.clone(),
                sensitive: wanted.sensitive,
            };
            state.outputs.insert(name.clone(), set);
        }
    }
    match fault {
        None => Ok(()),
        Some(message) => {
            let place = broken.map(|address| format!("  with {address},")).unwrap_or_default();
            Err(Diagnostic::new(message, place))
        }
    }
}

/// The resource that a fault strikes: the first that needs no other.
fn first_made(desired: &Desired) -> Option<&String> {
    let mut resources = desired.resources.iter();
    resources
        .find(|(_, wanted)| wanted.needs.is_empty())
        .map(|(address, _)| address)
}

/// Everything that cannot be made without `address`, directly or through others.
fn dependents(desired: &Desired, address: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut unexplored = vec![address.to_owned()];
    while let Some(needed) = unexplored.pop() {
        for (address, wanted) in &desired.resources {
            if wanted.needs.contains(&needed) && found.insert(address.clone()) {
                unexplored.push(address.clone());
            }
        }
    }
    found
}

fn strike(faults: &Faults, state: &mut State) -> Option<String> {
    if faults.apply.is_some() {
        return faults.apply.clone();
    }
    let message = faults.apply_once.clone()?;
    // Kept in the state, so that a restart of the simulator does not make it fail twice.
    state.spent_faults.insert(message.clone()).then_some(message)
}

/// Removes everything from the state, unless the destroy is made to fail.
pub(super) fn destroy(faults: &Faults, state: &mut State) -> Result<(), Diagnostic> {
    match &faults.destroy {
        Some(message) => Err(Diagnostic::new(message.clone(), "")),
        None => {
            state.resources.clear();
            state.outputs.clear();
            Ok(())
        }
    }
}

/// The provider's report of a failed Terraform command: the first `Error: ` line, and all of stderr packed.
pub(super) fn report(diagnostic: &Diagnostic) -> String {
    let stderr = format!("\nError: {}\n\n{}\n", diagnostic.summary, diagnostic.detail);
    let summary = diagnostic.summary.lines().next().unwrap_or_default();
    format!(
        "Terraform encountered an error. Summary: {summary}. \
         To see the full error run: echo \"{}\" | base64 -d | gunzip",
        packed(&stderr)
    )
}

fn packed(text: &str) -> String {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    // Writing to memory cannot fail; the empty text that would stand for it decodes to nothing and would be seen.
    let gzip = encoder
        .write_all(text.as_bytes())
        .and_then(|()| encoder.finish())
        .unwrap_or_default();
    STANDARD.encode(gzip)
}

#[cfg(test)]
mod tests {
    use super::super::module::{Assignment, Given, Module};
    use super::*;
    use flate2::read::GzDecoder;
    use serde_json::json;
    use std::io::Read;

    fn desired(given: &[(&str, &str)]) -> Desired {
        let module = json!({
            "variable": {
                "id": {"default": "one"}, "fault_apply": {"default": ""}, "fault_apply_once": {"default": ""},
                "fault_destroy": {"default": ""},
            },
            "resource": {"terraform_data": {
                "after": {"input": "${var.id}", "depends_on": ["terraform_data.main"]}, "main": {"input": "${var.id}"},
            }},
            "output": {
                "plain": {"value": "${var.id}"}, "after": {"value": "${terraform_data.after.output}"},
                "made": {"value": "${terraform_data.main.output}", "sensitive": true},
            },
        });
        let given: Vec<_> = given
            .iter()
            .map(|(name, value)| Assignment {
                name: (*name).into(),
                value: Given::CommandLine((*value).into()),
            })
            .collect();
        Module::parse(&module.to_string())
            .and_then(|module| module.evaluate("ws", &given))
            .expect("a plan")
    }

    #[test]
    fn an_apply_leaves_no_difference_and_a_change_makes_one() {
        let mut state = State::default();
        assert!(differs(&desired(&[]), &state));
        apply(&desired(&[]), &mut state).expect("an apply");
        assert!(!differs(&desired(&[]), &state));
        assert!(differs(&desired(&[("id", "two")]), &state));
        apply(&desired(&[("id", "two")]), &mut state).expect("an apply");
        assert_eq!(state.outputs["made"].value, json!("two"));
        assert!(state.outputs["made"].sensitive);
    }

    #[test]
    fn a_failed_apply_taints_its_resource_and_stops_what_needs_it() {
        let mut state = State::default();
        let failing = desired(&[("fault_apply", "quota")]);
        for _ in 0..2 {
            assert_eq!(
                apply(&failing, &mut state).err().map(|diagnostic| diagnostic.summary),
                Some("quota".into())
            );
            assert_eq!(state.resources.keys().collect::<Vec<_>>(), ["terraform_data.main"]);
            assert!(state.resources["terraform_data.main"].tainted);
            assert_eq!(state.outputs.keys().collect::<Vec<_>>(), ["plain"]);
            assert!(differs(&failing, &state));
        }
        apply(&desired(&[]), &mut state).expect("the healed apply");
        assert!(!differs(&desired(&[]), &state));
    }

    #[test]
    fn a_failed_change_keeps_the_outputs_that_were_there() {
        let mut state = State::default();
        apply(&desired(&[]), &mut state).expect("an apply");
        let failing = desired(&[("id", "two"), ("fault_apply", "quota")]);
        assert!(apply(&failing, &mut state).is_err());
        let values: Vec<_> = state
            .outputs
            .iter()
            .map(|(name, output)| (name.as_str(), &output.value))
            .collect();
        assert_eq!(
            values,
            [
                ("after", &json!("one")),
                ("made", &json!("one")),
                ("plain", &json!("two"))
            ]
        );
        assert_eq!(
            state.resources["terraform_data.after"].attributes,
            json!({"input": "one"})
        );
    }

    #[test]
    fn a_fault_that_strikes_once_is_remembered_in_the_state() {
        let mut state = State::default();
        let failing = desired(&[("fault_apply_once", "throttled")]);
        assert!(apply(&failing, &mut state).is_err());
        let mut reloaded = State::decode(&state.encode().expect("bytes")).expect("the same state");
        assert!(apply(&failing, &mut reloaded).is_ok());
    }

    #[test]
    fn a_failed_destroy_keeps_everything() {
        let mut state = State::default();
        apply(&desired(&[]), &mut state).expect("an apply");
        let stuck = desired(&[("fault_destroy", "in use")]);
        assert!(destroy(&stuck.faults, &mut state).is_err());
        assert_eq!(state.resources.len(), 2);
        assert!(destroy(&desired(&[]).faults, &mut state).is_ok());
        assert!(state.resources.is_empty() && state.outputs.is_empty());
    }

    #[test]
    fn a_report_names_the_first_line_and_unpacks_to_everything() {
        let text = report(&Diagnostic::new("first\nsecond", "why"));
        let (head, tail) = text.split_once("run: echo \"").expect("the packed part");
        assert_eq!(
            head,
            "Terraform encountered an error. Summary: first. To see the full error "
        );
        let packed = tail.strip_suffix("\" | base64 -d | gunzip").expect("the command");
        let mut unpacked = String::new();
        GzDecoder::new(STANDARD.decode(packed).expect("base64").as_slice())
            .read_to_string(&mut unpacked)
            .expect("gzip");
        assert_eq!(unpacked, "\nError: first\nsecond\n\nwhy\n");
    }
}
