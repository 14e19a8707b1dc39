// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package deploy tests what deploy/ has for production: dashboard and rules on a real Prometheus. `make deploy` sets up what it
// needs.
package deploy
