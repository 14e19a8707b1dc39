// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package control is the plan way from end to end: it watches what the request
// way reports, asks the policy for a plan, has the plan judged, compared and
// applied, and writes down what happened. loop.go is a plan, top-down, in one
// file. The types of face.go are what operators see of it; sidecar/admin
// encodes them.
package control
