// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"errors"
	"strings"

	"google.golang.org/grpc/status"

	"github.com/conch-serving/conch/sidecar/apply/driver"
)

// longest text of a server's failure that is kept: it is shown in many places, and a server may say anything.
const longest = 16 << 10

// brief is an error whose text is cut in the middle, where it is too long to be kept. What a server refuses stays a
// *driver.LoadError.
func brief(err error) error {
	if err == nil || len(err.Error()) <= longest {
		return err
	}
	text := func(err error) error {
		all := err.Error()
		return errors.New(strings.ToValidUTF8(all[:longest/2], "") + " ... " + strings.ToValidUTF8(all[len(all)-longest/2:], ""))
	}
	var refused *driver.LoadError
	if errors.As(err, &refused) {
		short := *refused
		short.Err = text(refused.Err)
		return &short
	}
	if _, is := status.FromError(err); is {
		return status.Error(status.Code(err), text(err).Error())
	}
	return text(err)
}
