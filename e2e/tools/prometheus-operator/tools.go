//go:build tools

// Package tools pins the module that has the CRDs; nothing imports it.
package tools

import _ "github.com/prometheus-operator/prometheus-operator/pkg/versionutil"
