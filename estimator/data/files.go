// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package data

import (
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"

	"google.golang.org/protobuf/encoding/protowire"
)

// Unpack writes a graph of the directory as a file of its own.
func Unpack(packed, path string) error {
	f, err := os.Open(packed)
	if err != nil {
		return err
	}
	defer f.Close() //nolint:errcheck // only read from
	z, err := gzip.NewReader(f)
	if err != nil {
		return err
	}
	text, err := io.ReadAll(io.LimitReader(z, mostGraph))
	if err != nil {
		return err
	}
	return os.WriteFile(path, text, 0o644)
}

// WriteLarge writes a valid ONNX file of about size bytes, a chain of products of 4096 x 1024 by 1024 x 4096 with the weights inside. The weights are
// holes of the file: it takes no room on most disks.
func WriteLarge(path string, size int64) error {
	const rows, columns = 1024, 4096
	const each = 4 * rows * columns
	layers := int(size / each)
	text := func(b []byte, field protowire.Number, s string) []byte {
		return protowire.AppendString(protowire.AppendTag(b, field, protowire.BytesType), s)
	}
	number := func(b []byte, field protowire.Number, v uint64) []byte {
		return protowire.AppendVarint(protowire.AppendTag(b, field, protowire.VarintType), v)
	}
	message := func(b []byte, field protowire.Number, m []byte) []byte {
		return protowire.AppendBytes(protowire.AppendTag(b, field, protowire.BytesType), m)
	}
	value := func(name string, dims ...int64) []byte {
		var shape []byte
		for _, d := range dims {
			if d < 0 {
				shape = message(shape, 1, text(nil, 2, "N"))
			} else {
				shape = message(shape, 1, number(nil, 1, uint64(d)))
			}
		}
		tensor := message(number(nil, 1, 1), 2, shape)
		return message(text(nil, 1, name), 2, message(nil, 1, tensor))
	}
	var head []byte // of the graph: everything but initializers
	var weights [][]byte
	x := "input"
	for i := range layers {
		w, y := fmt.Sprintf("w%d", i), fmt.Sprintf("t%d", i)
		node := text(text(text(text(nil, 1, x), 1, w), 2, y), 4, "MatMul")
		head = message(head, 1, node)
		a, b := uint64(rows), uint64(columns)
		if i%2 == 1 {
			a, b = b, a
		}
		tensor := text(number(number(number(nil, 1, a), 1, b), 2, 1), 8, w)
		tensor = protowire.AppendVarint(protowire.AppendTag(tensor, 9, protowire.BytesType), each)
		weights = append(weights, tensor)
		x = y
	}
	last := int64(columns)
	if layers%2 == 0 {
		last = rows
	}
	head = message(message(head, 11, value("input", -1, rows)), 12, value(x, -1, last))
	total := int64(len(head))
	for i, w := range weights {
		weights[i] = protowire.AppendVarint(protowire.AppendTag(nil, 5, protowire.BytesType), uint64(int64(len(w))+each))
		weights[i] = append(weights[i], w...)
		total += int64(len(weights[i])) + each
	}
	model := message(number(nil, 1, 8), 8, number(nil, 2, 17))
	model = protowire.AppendVarint(protowire.AppendTag(model, 7, protowire.BytesType), uint64(total))
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	at := int64(0)
	put := func(b []byte) error {
		n, err := f.WriteAt(b, at)
		at += int64(n)
		return err
	}
	err = errors.Join(put(model), put(head))
	for _, w := range weights {
		err = errors.Join(err, put(w))
		at += each
	}
	return errors.Join(err, f.Truncate(at), f.Close())
}
