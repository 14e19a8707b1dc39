// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package strict holds the chart's manifests against the Go types of Kubernetes
// and of the Prometheus operator: an unknown or doubled field, which a cluster
// drops in silence, fails. It applies the chart's patches as the API server does,
// and reads the compose file as docker compose does. It is a module of its own, so that none of its
// dependencies is one of Conch's.
package strict
