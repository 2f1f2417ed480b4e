package daemon

import (
	"bytes"
	"cmp"
	"context"
	"html/template"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/nyaladb/nyala/internal/daemon/buildinfo"
	"github.com/nyaladb/nyala/internal/status"
)

// Cell is one cell of a table on a page: text, which may link to another page.
type Cell struct {
	Text string `json:"text"`
	Link string `json:"link,omitempty"`
}

// Table is what a section shows. Everything in it is text: the page escapes it.
type Table struct {
	Header []string `json:"header,omitempty"` // empty: a table of names and values
	Rows   [][]Cell `json:"rows"`
}

// TextRow makes a row of plain texts.
func TextRow(texts ...string) []Cell {
	row := make([]Cell, len(texts))
	for i, t := range texts {
		row[i].Text = t
	}
	return row
}

// Section is a part of the index page, asked for at each request.
type Section struct {
	Title string
	// Order sorts sections; equal ones stand as added. The page's own facts have 0 and come first.
	Order int
	Table func(ctx context.Context) (Table, error)
}

type link struct{ Path, Text string }

// Link adds a page to the index.
func (w *Web) Link(path, text string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.links = append(w.links, link{path, text})
}

// AddSection adds a section to the index page.
func (w *Web) AddSection(s Section) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.sections = append(w.sections, s)
	slices.SortStableFunc(w.sections, func(a, b Section) int { return cmp.Compare(a.Order, b.Order) })
}

// Page is a page about one of many things of a kind.
type Page struct {
	Title    string // without the server's
	Sections []PageSection
}

// AddPage serves a page, which show makes of what the request names. An error of show is the answer: 404 where there is no such thing.
// It must come before Run.
func (w *Web) AddPage(path string, show func(*http.Request) (Page, error)) {
	w.mux.HandleFunc("GET "+path, func(rw http.ResponseWriter, r *http.Request) {
		p, err := show(r)
		switch status.CodeOf(err) {
		case status.OK:
			servePageOf(rw, r, page{Title: w.cfg.Title + ": " + p.Title, Sections: p.Sections})
		case status.TableNotFound, status.TabletNotFound:
			http.Error(rw, err.Error(), http.StatusNotFound)
		default:
			http.Error(rw, err.Error(), http.StatusServiceUnavailable)
		}
	})
}

// page is what the template of pages gets, and what its JSON form says.
type page struct {
	Title    string        `json:"title"`
	Sections []PageSection `json:"sections"`
	Links    []link        `json:"-"` // of the index
}

// PageSection is a part of a page.
type PageSection struct {
	Title string `json:"title"`
	Table Table  `json:"table"`
	Error string `json:"error,omitempty"`
}

// Columns are the headings of the table, and whether numbers alone stand under them, which are set flush right.
func (s PageSection) Columns() []pageColumn {
	out := make([]pageColumn, len(s.Table.Header))
	for i, title := range s.Table.Header {
		out[i] = pageColumn{Title: title, Number: isNumber(s.Table.Rows, i)}
	}
	return out
}

type pageColumn struct {
	Title  string
	Number bool
}

// isNumber says whether a column holds numbers alone, but for empty cells. An id of digits is longer than any number.
func isNumber(rows [][]Cell, column int) bool {
	some := false
	for _, r := range rows {
		if r[column].Text == "" {
			continue
		}
		if _, err := strconv.ParseUint(r[column].Text, 10, 64); err != nil || len(r[column].Text) > len("18446744073709551615") {
			return false
		}
		some = true
	}
	return some
}

func (w *Web) serveIndex(rw http.ResponseWriter, r *http.Request) {
	w.mu.Lock()
	sections, links := slices.Clone(w.sections), slices.Clone(w.links)
	w.mu.Unlock()
	p := page{Title: w.cfg.Title, Links: links, Sections: []PageSection{{Title: "Server", Table: w.facts()}}}
	for _, s := range sections {
		t, err := s.Table(r.Context())
		ps := PageSection{Title: s.Title, Table: t}
		if err != nil {
			ps.Error = err.Error()
		}
		p.Sections = append(p.Sections, ps)
	}
	servePageOf(rw, r, p)
}

func servePageOf(rw http.ResponseWriter, r *http.Request, p page) {
	if wantsJSON(r) {
		serveJSON(rw, http.StatusOK, p)
		return
	}
	servePage(rw, sectionsTemplate, p)
}

func (w *Web) facts() Table {
	b := buildinfo.Get()
	return Table{Rows: [][]Cell{
		TextRow("version", b.Version),
		TextRow("build", b.Commit+", "+b.Go+", "+b.Platform),
		TextRow("started", w.start.UTC().Format(time.RFC3339)),
		TextRow("up for", time.Since(w.start).Round(time.Second).String()),
	}}
}

func (w *Web) serveVarz(rw http.ResponseWriter, r *http.Request) {
	flags := w.cfg.Flags.All()
	if wantsJSON(r) {
		serveJSON(rw, http.StatusOK, map[string]any{"flags": flags})
		return
	}
	type group struct {
		Title string
		Flags []FlagInfo
	}
	var groups []group
	for _, f := range flags {
		if len(groups) == 0 || groups[len(groups)-1].Title != f.Group {
			groups = append(groups, group{Title: f.Group})
		}
		g := &groups[len(groups)-1]
		g.Flags = append(g.Flags, f)
	}
	servePage(rw, varzTemplate, map[string]any{"Title": w.cfg.Title + ": flags", "Groups": groups})
}

// servePage renders first, so that a fault in a template becomes an error and not half a page.
func servePage(rw http.ResponseWriter, t *template.Template, data any) {
	var buf bytes.Buffer
	if err := t.Execute(&buf, data); err != nil {
		http.Error(rw, err.Error(), http.StatusInternalServerError)
		return
	}
	rw.Header().Set("Content-Type", "text/html; charset=utf-8")
	rw.Header().Set("Cache-Control", "no-store")
	_, _ = buf.WriteTo(rw) // who asked has gone
}

const pageHead = `<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{{.Title}}</title>
<style>
:root { color-scheme: light dark; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 88rem; margin: 2rem auto; padding: 0 1rem; overflow-x: auto; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.1rem; margin-top: 2rem; }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; vertical-align: top; padding: .3rem .9rem .3rem 0; border-bottom: 1px solid #8884; overflow-wrap: break-word; }
h1 a { color: inherit; text-decoration: none; }
th { font-weight: 600; } td.name, td.fact, td.page { white-space: nowrap; } td.fact, td.page { width: 14rem; }
td.value { min-width: 8rem; max-width: 24rem; overflow-wrap: anywhere; }
th::first-letter, td.fact::first-letter { text-transform: uppercase; }
.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
.quiet { opacity: .7; } .error { color: #c22; } .set { font-weight: 600; }
</style>
</head>
<body>
<h1><a href="/">{{.Title}}</a></h1>
`

const pageFoot = `<p><a href="/">Back</a></p>
</body>
</html>
`

var sectionsTemplate = template.Must(template.New("sections").Parse(pageHead + `
{{- if .Links}}
<h2>Pages</h2>
<table>
<tbody>
{{- range .Links}}
<tr><td class="page"><a href="{{.Path}}">{{.Path}}</a></td><td>{{.Text}}</td></tr>
{{- end}}
</tbody>
</table>
{{- end}}
{{- range .Sections}}{{$columns := .Columns}}
<h2>{{.Title}}</h2>
{{- if .Error}}
<p class="error">{{.Error}}</p>
{{- end}}
{{- if .Table.Rows}}
<table>
{{- if $columns}}
<thead><tr>{{range $columns}}<th{{if .Number}} class="number"{{end}}>{{.Title}}</th>{{end}}</tr></thead>
{{- end}}
<tbody>
{{- range .Table.Rows}}
<tr>{{range $i, $cell := .}}<td{{if not $columns}}{{if eq $i 0}} class="fact"{{end}}{{else if (index $columns $i).Number}} class="number"{{end}}>{{if .Link}}<a href="{{.Link}}">{{.Text}}</a>{{else}}{{.Text}}{{end}}</td>{{end}}</tr>
{{- end}}
</tbody>
</table>
{{- else if not .Error}}
<p class="quiet">None.</p>
{{- end}}
{{- end}}
{{- if not .Links}}
<p><a href="/">Back</a></p>
{{- end}}
</body>
</html>
`))

var varzTemplate = template.Must(template.New("varz").Parse(pageHead + `
{{- range .Groups}}
<h2>{{.Title}}</h2>
<table>
<thead><tr><th>Flag</th><th>Value</th><th>From</th><th>Default</th><th>Tags</th><th>What it is</th></tr></thead>
<tbody>
{{- range .Flags}}
<tr><td class="name">--{{.Name}}</td><td class="value{{if ne .Source "default"}} set{{end}}">{{.Value}}</td><td class="name">{{.Source}}</td><td class="value">{{.Default}}</td><td>{{range .Tags}}{{.}} {{end}}</td><td>{{.Help}}{{if .Accepted}} <span class="quiet">({{.Accepted}})</span>{{end}}</td></tr>
{{- end}}
</tbody>
</table>
{{- end}}
` + pageFoot))
