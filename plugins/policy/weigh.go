// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"errors"
	"fmt"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// Decoded messages are larger than encoded ones: an empty partition is two bytes on
// the wire and some 200 in memory. So an answer is weighed before it is decoded.
const (
	// maxDecodedBytes is the most that an answer may take once decoded. A plan of
	// 1,000 partitions and 10,000 instances takes 3 MiB.
	maxDecodedBytes = 48 << 20
	messageBytes    = 256
	elementBytes    = 24
	// maxDepth of messages in messages; the contract has 5.
	maxDepth = 16
)

// errHeavy is the refusal of an answer that would be too large once decoded.
var errHeavy = fmt.Errorf("it would take more than %d MiB once decoded", maxDecodedBytes>>20)

// weigh adds up what an encoded message takes in memory at the most, without
// decoding it. It ends as soon as the sum is above maxDecodedBytes.
func weigh(data []byte, of protoreflect.MessageDescriptor) error {
	sum := 0
	return weighInto(&sum, data, of, 0)
}

func weighInto(sum *int, data []byte, of protoreflect.MessageDescriptor, depth int) error {
	if depth > maxDepth {
		return errors.New("its messages are nested too deeply")
	}
	*sum += messageBytes
	for len(data) > 0 {
		if *sum > maxDecodedBytes {
			return errHeavy
		}
		number, kind, n := protowire.ConsumeTag(data)
		if n < 0 {
			return protowire.ParseError(n)
		}
		data = data[n:]
		size := protowire.ConsumeFieldValue(number, kind, data)
		if size < 0 {
			return protowire.ParseError(size)
		}
		value := data[:size]
		data = data[size:]
		*sum += elementBytes
		if kind != protowire.BytesType {
			continue
		}
		content, _ := protowire.ConsumeBytes(value)
		field := of.Fields().ByNumber(number)
		switch {
		case field != nil && field.Kind() == protoreflect.MessageKind && !field.IsMap():
			if err := weighInto(sum, content, field.Message(), depth+1); err != nil {
				return err
			}
		case field != nil && field.IsMap():
			*sum += messageBytes + len(content)
		case field != nil && field.IsPacked():
			*sum += 8 * len(content) // varints of one byte become numbers of eight
		default:
			*sum += len(content)
		}
	}
	if *sum > maxDecodedBytes {
		return errHeavy
	}
	return nil
}
