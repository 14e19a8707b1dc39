// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package output_test

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/tritonctl/output"
)

type row struct {
	Name  string  `json:"name"`
	Share float64 `json:"busy_share"`
}

func TestPrintKeepsTheAPIsNamesInEveryFormat(t *testing.T) {
	value := []row{{"gpu0", .5}, {"", 0}}
	draw := func(t *output.Table) {
		t.Row("NAME", "BUSY")
		for _, r := range value {
			t.Row(r.Name, output.Percent(r.Share))
		}
		t.Line("two rows")
	}
	for format, want := range map[string]string{
		"table": "NAME  BUSY\ngpu0  50.0%\n-     0.0%\ntwo rows\n",
		"json":  "[\n  {\n    \"name\": \"gpu0\",\n    \"busy_share\": 0.5\n  },\n  {\n    \"name\": \"\",\n    \"busy_share\": 0\n  }\n]\n",
		"yaml":  "- name: gpu0\n  busy_share: 0.5\n- name: \"\"\n  busy_share: 0\n",
	} {
		var out bytes.Buffer
		require.NoError(t, output.Print(&out, format, value, draw))
		require.Equal(t, want, out.String(), format)
	}
	require.ErrorIs(t, output.Print(nil, "xml", value, draw), output.ErrFormat)
}

// What a server says of a model, or a client of itself, moves no cursor and makes no lines of a table.
func TestTextsOfOthersAreText(t *testing.T) {
	var out bytes.Buffer
	require.NoError(t, output.Print(&out, "table", nil, func(t *output.Table) {
		t.Row("a", "failed\x1b[2J\x1b]0;title\x07\nb\tready")
		t.Line("a\x9b31m\nb\r")
	}))
	require.Equal(t, "a  failed [2J ]0;title  b ready\na\ufffd31m\nb \n", out.String())
	require.NotContains(t, out.String(), "\x1b")
}

// Columns stand below each other on a terminal, where some characters take two places and some none.
func TestColumnsOfWideCharacters(t *testing.T) {
	var out bytes.Buffer
	require.NoError(t, output.Print(&out, "table", nil, func(t *output.Table) {
		t.Row("MODEL", "STATE", "WHY")
		for _, name := range []string{"resnet", "模型", "🐚🐚", "cafe\u0301"} {
			t.Row(name, "ready", "")
		}
		t.Line("between")
		t.Row("a", "b")
	}))
	require.Equal(t, "MODEL   STATE  WHY\nresnet  ready  -\n模型    ready  -\n🐚🐚    ready  -\ncafe\u0301    ready  -\nbetween\na  b\n", out.String())
}

func TestCells(t *testing.T) {
	require.Equal(t, "25ms", output.Milliseconds(.025))
	require.Equal(t, "", output.Milliseconds(0))
	require.Equal(t, "80.0GiB", output.Bytes(80<<30))
	require.Equal(t, "1.5MiB", output.Bytes(3<<19))
	require.Equal(t, "", output.Bytes(0))
}
