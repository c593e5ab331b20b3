// Rules for the page's script: `npx eslint@10.15.0 --config .github/eslint.config.mjs plugins/tidemark_airflow/page/static/page.js`
export default [{
  languageOptions: { sourceType: "script", ecmaVersion: 2023 },
  rules: {
    "eqeqeq": "error", "no-dupe-keys": "error", "no-eval": "error", "no-fallthrough": "error", "no-implied-eval": "error",
    "no-redeclare": "error", "no-self-compare": "error", "no-shadow-restricted-names": "error", "no-unreachable": "error",
    "no-unsafe-finally": "error", "no-unused-vars": "error", "no-var": "error", "prefer-const": "error", "use-isnan": "error",
  },
}];
