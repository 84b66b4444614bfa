export default {
  input: process.env.DOCUMENT,
  output: { path: 'hey', importFileExtension: '.js' },
  plugins: ['@hey-api/client-fetch', '@hey-api/sdk', '@hey-api/typescript'],
};
