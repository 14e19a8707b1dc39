// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package policyhost

import (
	"fmt"
	"regexp"

	"google.golang.org/protobuf/proto"

	"github.com/conch-serving/conch/plugins/policy"
)

const (
	// maxDescription is bytes of a whole description, and maxDescribed of parameters, of needs and of disciplines each.
	maxDescription, maxDescribed = 256 << 10, 256
)

// nameForm is what a policy and its parameters may be called, and versionForm its version: they are labels of metrics, keys in the
// state directory and words on a command line.
var (
	nameForm    = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.+-]{0,62}$`)
	versionForm = regexp.MustCompile(`^[ -~]{0,63}$`)
)

// presentable is ErrGarbage where a description cannot be kept and shown.
func presentable(d *policy.Description) error {
	if size := proto.Size(d); size > maxDescription {
		return fmt.Errorf("%w: a description of %d bytes; at most %d", ErrGarbage, size, maxDescription)
	}
	if n := max(len(d.GetParameters()), len(d.GetNeeds()), len(d.GetDisciplines())); n > maxDescribed {
		return fmt.Errorf("%w: a description with a list of %d; at most %d", ErrGarbage, n, maxDescribed)
	}
	if d.GetName() == "" {
		return fmt.Errorf("%w: a description without a name", ErrGarbage)
	}
	if !versionForm.MatchString(d.GetVersion()) {
		return fmt.Errorf("%w: a description with the version %.80q; it has up to 63 printable characters of ASCII", ErrGarbage, d.GetVersion())
	}
	names := []string{d.GetName()}
	for _, p := range d.GetParameters() {
		names = append(names, p.GetName())
	}
	for _, name := range names {
		if !nameForm.MatchString(name) {
			return fmt.Errorf("%w: a description with the name %.80q; names have 1 to 63 letters, digits, dots, pluses, dashes and underscores, and begin with none of dot, plus and dash", ErrGarbage, name)
		}
	}
	return nil
}
