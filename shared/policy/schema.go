package policy

import _ "embed"

// schema is kept by hand, for its descriptions; a test compares it with the parser field by field.
//
//go:embed schema.json
var schema []byte

// Schema returns the JSON Schema (2020-12) of the policy document, for editors and other people's checks.
func Schema() []byte { return schema }
