const place = document.getElementById("documentation");
SwaggerUIBundle({
  url: place.dataset.document,
  domNode: place,
  deepLinking: true,
  validatorUrl: null,
  persistAuthorization: false,
});
