// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package learning holds tests of what is learnt together with what it decides: the
// recorder of package observe, the tables of forecast and the queue in one loop on a
// virtual clock. Each of them may be right alone while a wrong profile keeps what would
// correct it from being executed.
package learning
