// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package reaper is the first process of a container (`conch init`): it starts conch, hands signals on to it, starts it again when it
// crashes, and waits for every process that others leave behind. Processes that conch keeps for its next life (a shim with its
// tritonserver) therefore survive a crash of conch inside a container, as they do under an init system.
//
// A conch that ends by itself within Options.Settled, say because its configuration is wrong, is not started again: the container ends with
// its status, which the container's operator sees. So does one that was asked to end.
package reaper
