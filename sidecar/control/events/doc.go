// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package events has the events of the plan path: author, time and reason. The log
// keeps events across restarts and lets readers follow it.
package events
