package config

import (
	"encoding"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"
)

// decoder reads one YAML text into a value and collects what is wrong. It walks the mappings itself, and leaves single values
// to the library, because the library stops at its first error and names no place for a bad duration.
type decoder struct {
	origin   string // "gateway.yaml:"; "" leaves places out, for a variable has just one
	problems []error
}

func (d *decoder) decode(source []byte, into reflect.Value) []error {
	file, err := parser.ParseBytes(source, 0)
	if err != nil {
		if place, ok := errors.AsType[yaml.Error](err); ok {
			d.reportf(place.GetToken(), "%s; mend the YAML", place.GetMessage())
			return d.problems
		}
		d.reportf(nil, "%w; mend the YAML", err)
		return d.problems
	}
	var body ast.Node
	for _, doc := range file.Docs {
		if doc.Body == nil {
			continue
		}
		if body != nil {
			d.reportf(doc.Body.GetToken(), "a second document; keep one in a file")
			return d.problems
		}
		body = doc.Body
	}
	if body == nil {
		return nil
	}
	ast.Walk(plain{d}, body)
	if len(d.problems) == 0 {
		d.value(body, into, "")
	}
	return d.problems
}

// reportf adds a problem at a place, if there is one.
func (d *decoder) reportf(at *token.Token, format string, args ...any) {
	err := fmt.Errorf(format, args...)
	if d.origin != "" && at != nil && at.Position != nil {
		err = fmt.Errorf("%s%d:%d: %w", d.origin, at.Position.Line, at.Position.Column, err)
	} else if d.origin != "" {
		err = fmt.Errorf("%s %w", d.origin, err)
	}
	d.problems = append(d.problems, err)
}

// plain reports the parts of YAML that a configuration does without.
type plain struct{ d *decoder }

func (p plain) Visit(node ast.Node) ast.Visitor {
	switch node.Type() {
	case ast.AnchorType, ast.AliasType, ast.MergeKeyType, ast.TagType:
		p.d.reportf(node.GetToken(), "anchors, aliases, merge keys and tags are not read here; write the value out")
		return nil
	default:
		return p
	}
}

// value reads node into v, which is called path in messages.
func (d *decoder) value(node ast.Node, v reflect.Value, path string) {
	if node == nil || node.Type() == ast.NullType {
		return // nothing written: the default stands
	}
	if !isLeaf(v.Type()) {
		switch v.Kind() {
		case reflect.Pointer:
			element := reflect.New(v.Type().Elem())
			if !v.IsNil() {
				element.Elem().Set(v.Elem())
			}
			d.value(node, element.Elem(), path)
			v.Set(element)
		case reflect.Struct:
			d.mapping(node, v, path)
		default:
			d.sequence(node, v, path)
		}
		return
	}
	fresh := reflect.New(v.Type())
	err := yaml.NodeToValue(node, fresh.Interface(), yaml.Strict())
	if err != nil || cutsFraction(node, v.Type()) {
		d.refuse(node, v.Type(), path, err)
		return
	}
	v.Set(fresh.Elem())
}

// cutsFraction reports whether the library would read 1.5 as the whole number 1.
func cutsFraction(node ast.Node, t reflect.Type) bool {
	whole := t.Kind() >= reflect.Int && t.Kind() <= reflect.Uintptr
	return whole && node.Type() == ast.FloatType && !readsItself(t)
}

// mapping reads a mapping into a struct, key by key in the order of the text.
func (d *decoder) mapping(node ast.Node, v reflect.Value, path string) {
	entries, ok := node.(ast.MapNode)
	if !ok {
		d.refuse(node, v.Type(), path, nil)
		return
	}
	known := fieldsOf(v.Type())
	for entry := entries.MapRange(); entry.Next(); {
		name := entry.Key().GetToken().Value
		i := slices.IndexFunc(known, func(f field) bool { return f.name == name })
		if i < 0 {
			d.reportf(entry.Key().GetToken(), "%s is unknown; known here: %s", join(path, name), names(known))
			continue
		}
		d.value(entry.Value(), v.FieldByIndex(known[i].index), join(path, name))
	}
}

// sequence reads a list, item by item.
func (d *decoder) sequence(node ast.Node, v reflect.Value, path string) {
	list, ok := node.(*ast.SequenceNode)
	if !ok {
		d.refuse(node, v.Type(), path, nil)
		return
	}
	fresh := reflect.MakeSlice(v.Type(), len(list.Values), len(list.Values))
	for i, item := range list.Values {
		d.value(item, fresh.Index(i), fmt.Sprintf("%s[%d]", path, i))
	}
	v.Set(fresh)
}

// refuse reports a value that does not fit. The value itself is not quoted: it may be a secret in the wrong place.
func (d *decoder) refuse(node ast.Node, t reflect.Type, path string, err error) {
	if path == "" {
		path = "this"
	}
	if err != nil && readsItself(t) {
		d.reportf(node.GetToken(), "%s: %w", path, err)
		return
	}
	d.reportf(node.GetToken(), "%s does not fit; write %s", path, wanted(t))
}

// wanted says in words what a field of type t takes.
func wanted(t reflect.Type) string {
	if t == reflect.TypeFor[time.Duration]() {
		return "a duration, such as 50ms or 10s"
	}
	switch t.Kind() {
	case reflect.Bool:
		return "true or false"
	case reflect.String:
		return "one text"
	case reflect.Float32, reflect.Float64:
		return "a number"
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return "a whole number, not negative"
	case reflect.Slice, reflect.Array:
		return "a list, such as [a, b]"
	case reflect.Struct, reflect.Map:
		return "a mapping, such as {name: value}"
	default:
		return "a whole number"
	}
}

func join(path, name string) string {
	if path == "" {
		return name
	}
	return path + "." + name
}

func names(known []field) string {
	all := make([]string, len(known))
	for i, f := range known {
		all[i] = f.name
	}
	slices.Sort(all)
	return strings.Join(all, ", ")
}

// readsItself reports whether t has its own way to read text or YAML.
func readsItself(t reflect.Type) bool {
	p := reflect.PointerTo(t)
	return p.Implements(reflect.TypeFor[encoding.TextUnmarshaler]()) ||
		p.Implements(reflect.TypeFor[yaml.InterfaceUnmarshaler]()) ||
		p.Implements(reflect.TypeFor[yaml.BytesUnmarshaler]()) ||
		p.Implements(reflect.TypeFor[yaml.NodeUnmarshaler]())
}
