//go:build tools

// Package tools pins the programs of this group; nothing imports it.
package tools

import _ "github.com/prometheus-operator/prometheus-operator/cmd/operator"
