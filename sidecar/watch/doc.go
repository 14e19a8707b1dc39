// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package watch makes one stream of state for any number of watchers. One producer samples the topics that are watched, encodes every object once
// for all watchers, and sends what has changed. Without watchers nothing is computed.
package watch
