// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package state is the state directory of a conch: closed to other users, with the database that one conch at a time may have, the repository of
// models, and the name of the process that works on it.
package state
