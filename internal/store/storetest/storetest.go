// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package storetest holds implementations of store.Store to one behaviour.
package storetest

import (
	"bytes"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/conch-serving/conch/internal/store"
)

// Run tests an implementation. Open gives a Store without anything in it, and a function that closes a Store and opens another on what it has kept.
func Run(t *testing.T, open func(t *testing.T) (s store.Store, again func() store.Store)) {
	t.Run("values", func(t *testing.T) {
		s, again := open(t)
		absent(t, s, "b", "k")
		require.NoError(t, s.Write(store.Change{Bucket: "b", Key: "k", Value: []byte("1")}, store.Change{Bucket: "c", Key: "k", Value: []byte("2")}))
		require.NoError(t, s.Later(store.Change{Bucket: "b", Key: "l", Value: []byte("3")}))
		for range 2 {
			require.Equal(t, "1", get(t, s, "b", "k"))
			require.Equal(t, "2", get(t, s, "c", "k"))
			require.Equal(t, "3", get(t, s, "b", "l"))
			require.Equal(t, []string{"k", "l"}, keys(t, s, "b"))
			s = again()
		}
		require.NoError(t, s.Write(store.Change{Bucket: "b", Key: "k"}, store.Change{Bucket: "b", Key: "never"}))
		absent(t, s, "b", "k")
		require.Equal(t, []string{"l"}, keys(t, again(), "b"))
	})
	t.Run("keys are bytes in their order", func(t *testing.T) {
		s, again := open(t)
		want := []string{"\x00\x00\x00\x00\x00\x00\x00\x02", "\x00\x00\x00\x00\x00\x00\x01\x00", "a/ä b.c", "a\xff"}
		for _, k := range []int{2, 0, 3, 1} {
			require.NoError(t, s.Write(store.Change{Bucket: "b", Key: want[k], Value: []byte("v")}))
		}
		require.Equal(t, want, keys(t, s, "b"))
		require.Equal(t, want, keys(t, again(), "b"))
	})
	t.Run("a value is the caller's", func(t *testing.T) {
		s, _ := open(t)
		v := []byte("before")
		require.NoError(t, s.Write(store.Change{Bucket: "b", Key: "k", Value: v}))
		copy(v, "after!")
		got, err := s.Get("b", "k")
		require.NoError(t, err)
		copy(got, "after!")
		require.Equal(t, "before", get(t, s, "b", "k"))
	})
	t.Run("values of mebibytes", func(t *testing.T) {
		s, again := open(t)
		random := rand.New(rand.NewPCG(1, 2))
		noise := make([]byte, 3<<20)
		for i := range noise {
			noise[i] = byte(random.Uint32())
		}
		for range 3 {
			require.NoError(t, s.Write(store.Change{Bucket: "b", Key: "noise", Value: noise}, store.Change{Bucket: "b", Key: "text", Value: []byte(strings.Repeat("plan ", 2<<20))}))
			noise[0]++
			s = again()
			got, err := s.Get("b", "noise")
			require.NoError(t, err)
			noise[0]--
			require.True(t, bytes.Equal(noise, got))
			noise[0]++
			require.Len(t, get(t, s, "b", "text"), 10<<20)
		}
		require.NoError(t, s.Write(store.Change{Bucket: "b", Key: "noise"}, store.Change{Bucket: "b", Key: "text", Value: []byte("small")}))
		require.Equal(t, "small", get(t, again(), "b", "text"))
	})
	t.Run("it is a map that outlives its process", func(t *testing.T) {
		rapid.Check(t, func(rt *rapid.T) {
			s, again := open(t)
			want := map[string]string{}
			for range rapid.IntRange(1, 12).Draw(rt, "writes") {
				var changes []store.Change
				for range rapid.IntRange(1, 4).Draw(rt, "changes") {
					c := store.Change{Bucket: rapid.SampledFrom([]string{"a", "b"}).Draw(rt, "bucket"), Key: fmt.Sprint(rapid.IntRange(0, 3).Draw(rt, "key"))}
					if n := rapid.IntRange(0, 9).Draw(rt, "value"); n > 0 {
						c.Value = fmt.Append(nil, n)
					}
					changes = append(changes, c)
					want[c.Bucket+c.Key] = string(c.Value)
				}
				write := s.Write
				if rapid.Bool().Draw(rt, "later") {
					write = s.Later
				}
				require.NoError(rt, write(changes...))
				if rapid.IntRange(0, 3).Draw(rt, "again") == 0 {
					s = again()
				}
				maps.DeleteFunc(want, func(_, v string) bool { return v == "" })
				has := map[string]string{}
				for _, bucket := range []string{"a", "b"} {
					for _, key := range keys(t, s, bucket) {
						has[bucket+key] = get(t, s, bucket, key)
					}
				}
				require.Equal(rt, want, has)
			}
		})
	})
}

func absent(t *testing.T, s store.Store, bucket, key string) {
	t.Helper()
	v, err := s.Get(bucket, key)
	require.NoError(t, err)
	require.Nil(t, v)
}

func get(t *testing.T, s store.Store, bucket, key string) string {
	t.Helper()
	v, err := s.Get(bucket, key)
	require.NoError(t, err)
	return string(v)
}

func keys(t *testing.T, s store.Store, bucket string) []string {
	t.Helper()
	all, err := s.Keys(bucket)
	require.NoError(t, err)
	require.True(t, slices.IsSorted(all))
	return all
}
