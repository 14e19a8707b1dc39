// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package door

import (
	"crypto/sha256"
	"encoding/base64"
	"html"
	"net/http"

	"github.com/conch-serving/conch/internal/look"
)

// style is that of the door's own pages, which are whole without another file: who is not let in gets none.
const style = `main{max-width:34rem;margin:12vh auto;padding:0 1rem}label{display:block;margin:1em 0 .3em;color:var(--soft)}
input,button{font:inherit;padding:.5em .7em;color:var(--ink);background:var(--panel);border:1px solid var(--line);border-radius:6px}input{width:100%}button{margin-top:1em}a{color:var(--s0)}`

const signInForm = `<form method="post" action="/sign-in"><label for="token">Token</label><input id="token" name="token" type="password" autocomplete="off" required autofocus>
<button>Sign in</button></form>`

// page answers with a small page of the door's own.
func (d *Door) page(w http.ResponseWriter, status int, body string) {
	text := look.CSS + style
	sum := sha256.Sum256([]byte(text))
	h := w.Header()
	h.Set("Content-Security-Policy", "default-src 'none'; style-src 'sha256-"+base64.StdEncoding.EncodeToString(sum[:])+"'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'")
	h.Set("Content-Type", "text/html; charset=utf-8")
	h.Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_, _ = w.Write([]byte("<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width\"><title>Conch</title><style>" +
		text + "</style><main><h1>Conch</h1>" + body + "</main></html>\n")) // the browser has gone
}

func escape(text string) string { return html.EscapeString(text) }
