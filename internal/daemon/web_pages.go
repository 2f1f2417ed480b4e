package daemon

import (
	"bytes"
	"cmp"
	"context"
	"html/template"
	"net/http"
	"slices"
	"time"

	"github.com/nyaladb/nyala/internal/daemon/buildinfo"
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

// page is what the template of the index gets, and what its JSON form says.
type page struct {
	Title    string        `json:"title"`
	Sections []pageSection `json:"sections"`
	Links    []link        `json:"-"`
}

type pageSection struct {
	Title string `json:"title"`
	Table Table  `json:"table"`
	Error string `json:"error,omitempty"`
}

func (w *Web) serveIndex(rw http.ResponseWriter, r *http.Request) {
	w.mu.Lock()
	sections, links := slices.Clone(w.sections), slices.Clone(w.links)
	w.mu.Unlock()
	p := page{Title: w.cfg.Title, Links: links, Sections: []pageSection{{Title: "Server", Table: w.facts()}}}
	for _, s := range sections {
		t, err := s.Table(r.Context())
		ps := pageSection{Title: s.Title, Table: t}
		if err != nil {
			ps.Error = err.Error()
		}
		p.Sections = append(p.Sections, ps)
	}
	if wantsJSON(r) {
		serveJSON(rw, http.StatusOK, p)
		return
	}
	servePage(rw, indexTemplate, p)
}

func (w *Web) facts() Table {
	b := buildinfo.Get()
	return Table{Rows: [][]Cell{
		TextRow("Version", b.Version),
		TextRow("Build", b.Commit+", "+b.Go+", "+b.Platform),
		TextRow("Started", w.start.UTC().Format(time.RFC3339)),
		TextRow("Up for", time.Since(w.start).Round(time.Second).String()),
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
th { font-weight: 600; } td.name { white-space: nowrap; }
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

var indexTemplate = template.Must(template.New("index").Parse(pageHead + `
<h2>Pages</h2>
<table>
<tbody>
{{- range .Links}}
<tr><td class="name"><a href="{{.Path}}">{{.Path}}</a></td><td>{{.Text}}</td></tr>
{{- end}}
</tbody>
</table>
{{- range .Sections}}
<h2>{{.Title}}</h2>
{{- if .Error}}
<p class="error">{{.Error}}</p>
{{- end}}
{{- if .Table.Rows}}
<table>
{{- if .Table.Header}}
<thead><tr>{{range .Table.Header}}<th>{{.}}</th>{{end}}</tr></thead>
{{- end}}
<tbody>
{{- range .Table.Rows}}
<tr>{{range .}}<td>{{if .Link}}<a href="{{.Link}}">{{.Text}}</a>{{else}}{{.Text}}{{end}}</td>{{end}}</tr>
{{- end}}
</tbody>
</table>
{{- else if not .Error}}
<p class="quiet">None.</p>
{{- end}}
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
<tr><td class="name">--{{.Name}}</td><td{{if ne .Source "default"}} class="set"{{end}}>{{.Value}}</td><td>{{.Source}}</td><td>{{.Default}}</td><td>{{range .Tags}}{{.}} {{end}}</td><td>{{.Help}}{{if .Accepted}} <span class="quiet">({{.Accepted}})</span>{{end}}</td></tr>
{{- end}}
</tbody>
</table>
{{- end}}
` + pageFoot))
