// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package configmaps

import (
	"bytes"
	"encoding/gob"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/google/uuid"
	"github.com/klauspost/compress/zstd"
	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/conch-serving/conch/sidecar/apply/driver/kubernetes"
)

// A ConfigMap holds 1 MiB, and etcd takes requests of 1.5 MiB.
const (
	// inHead is how large a bucket may be, compressed, to lie in the head: ten of them fit.
	inHead = 96 << 10
	// inPart is how much of a larger one lies in one further ConfigMap.
	inPart = 900 << 10
	// maxBucket is how large a bucket may be, compressed. 400 models' plans, profiles and revisions are a tenth of it.
	maxBucket = 16 * inPart

	// labelPart tells the ConfigMaps of the state from others of the release.
	labelPart, partOfState = "conch.io/part", "state"
	// partKey is the key of a part's data. The head's keys are "values.BUCKET", and "parts.BUCKET" for the names of parts, in JSON.
	partKey, valuesKey, partsKey = "data", "values.", "parts."
)

// packed is a bucket as the head has it: compressed, or the names of the ConfigMaps that hold it.
type packed struct {
	text  []byte
	parts []string
}

func (s *Store) headName() string { return s.o.Release + "-state" }

// partName is another's name for each part that is ever made.
func (s *Store) partName() string { return s.headName() + "-" + uuid.NewString() }

// object is a ConfigMap of the state.
func (s *Store) object(name string, annotations map[string]string, data map[string][]byte) *core.ConfigMap {
	c := &core.ConfigMap{ObjectMeta: meta.ObjectMeta{
		Name: name, Namespace: s.o.Namespace, Annotations: annotations,
		Labels: map[string]string{kubernetes.LabelManaged: kubernetes.Managed, kubernetes.LabelRelease: s.o.Release, labelPart: partOfState},
	}, BinaryData: data}
	if s.o.Owner != nil {
		c.OwnerReferences = []meta.OwnerReference{*s.o.Owner}
	}
	return c
}

// packHead has a head hold buckets, and no others.
func packHead(head *core.ConfigMap, buckets map[string]packed) {
	head.BinaryData = map[string][]byte{}
	for name, p := range buckets {
		if len(p.parts) == 0 {
			head.BinaryData[valuesKey+name] = p.text
			continue
		}
		text, err := json.Marshal(p.parts)
		if err != nil {
			panic(err) // they are strings
		}
		head.BinaryData[partsKey+name] = text
	}
}

func unpackHead(head *core.ConfigMap) (map[string]packed, error) {
	buckets := map[string]packed{}
	for key, text := range head.BinaryData {
		if name, is := strings.CutPrefix(key, valuesKey); is {
			buckets[name] = packed{text: text}
		} else if name, is := strings.CutPrefix(key, partsKey); is {
			var p packed
			if err := json.Unmarshal(text, &p.parts); err != nil {
				return nil, fmt.Errorf("%s: %w; delete the ConfigMap to start over", key, err)
			}
			buckets[name] = p
		}
	}
	return buckets, nil
}

// encode compresses a bucket: plans and revisions that follow one another say much the same.
func encode(bucket map[string][]byte) ([]byte, error) {
	var text bytes.Buffer
	if err := gob.NewEncoder(&text).Encode(bucket); err != nil {
		return nil, err
	}
	z, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1), zstd.WithWindowSize(8<<20))
	if err != nil {
		return nil, err
	}
	return z.EncodeAll(text.Bytes(), nil), z.Close()
}

func decode(text []byte) (map[string][]byte, error) {
	z, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(1<<30))
	if err != nil {
		return nil, err
	}
	defer z.Close()
	all, err := z.DecodeAll(text, nil)
	if err != nil {
		return nil, err
	}
	bucket := map[string][]byte{}
	return bucket, gob.NewDecoder(bytes.NewReader(all)).Decode(&bucket)
}
