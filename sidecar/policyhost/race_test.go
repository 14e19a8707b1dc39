// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

//go:build race

package policyhost_test

// raceDetector reserves more private memory than any limit of a policy allows: what is
// limited cannot start with it.
const raceDetector = true
