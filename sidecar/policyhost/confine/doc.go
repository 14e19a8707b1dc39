// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package confine takes from a policy's process what it does not need, before the
// policy's program runs in it: resource limits, a view of the file system without
// conch's own directories (Landlock), no TCP, and where conch is root a user that owns
// nothing.
//
// Conch starts itself as the launcher ([Command]); the launcher gives everything up and
// becomes the program ([Main]). What a system cannot do is left out: an old kernel has
// no Landlock, a conch that is not root has no other user, and a kernel whose Landlock
// does not know unix sockets (before ABI 9) lets a policy of conch's own user connect to
// them.
package confine
